"""`python -m hydrasurgeon`, also under torchrun and accelerate launch."""

from hydrasurgeon.cli.app import main

if __name__ == "__main__":
    main()
