"""DeBERTa v2 and v3: attention that also compares what is said with how far away it is said."""
