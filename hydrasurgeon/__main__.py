"""`hydrasurgeon` and `python -m hydrasurgeon`, also under torchrun and accelerate launch."""

import gc
import os
import sys

# pydantic looks for plugins in the metadata of every installed package; a command needs none.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from hydrasurgeon.cli.signals import ended


def command() -> int:
    # A signal may come while the commands are imported, too.
    from hydrasurgeon.cli.app import main

    return main()


def main() -> None:
    """Run the console script. Imports leave no garbage, so the collector skips them; torch's parts
    complain of what is left, so they are collected.
    """
    gc.disable()  # until a command begins
    code = ended(command)
    if "torch" not in sys.modules:
        gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
