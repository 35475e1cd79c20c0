"""Launch the server: ``python -m sglang.launch_server --model-path MODEL [options]``.

Imported again by each spawned worker, so everything else is imported only where the server starts.
"""

import sys


def main() -> None:
    """Parse the arguments and serve."""
    import warnings

    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
        "  Example: sglang serve --model-path <model> [options]",
        UserWarning,
        stacklevel=1,
    )
    from sglang.srt.entrypoints.engine import launch
    from sglang.srt.server_args import prepare_server_args

    launch(prepare_server_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
