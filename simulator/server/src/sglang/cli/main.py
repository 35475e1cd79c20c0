"""The ``sglang`` command. Imported again by each spawned worker, so it imports nothing of the server."""

import argparse


def main() -> None:
    """``sglang serve --model-path MODEL [options]`` or ``sglang version``."""
    parser = argparse.ArgumentParser(prog="sglang")
    commands = parser.add_subparsers(dest="subcommand", required=True)
    commands.add_parser("serve", help="Launch an SGLang server.", add_help=False)
    commands.add_parser("version", help="Show the version information.")
    options, rest = parser.parse_known_args()
    if options.subcommand == "version":
        from sglang.version import __version__

        print(f"sglang version: {__version__}")
        return
    from sglang.srt.entrypoints.engine import launch
    from sglang.srt.server_args import prepare_server_args

    launch(prepare_server_args(rest))


if __name__ == "__main__":
    main()
