"""`topics`, and `python -m topics`: the command line, quiet from its first moment.

Loading it takes a tenth of a second. Ctrl-C ends the process without a word meanwhile, instead of with a traceback."""

import signal


def main() -> None:
    hears = signal.getsignal(signal.SIGINT)
    if hears is signal.default_int_handler:  # else somebody made us deaf on purpose
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from topics.cli import main as run

    signal.signal(signal.SIGINT, hears)
    run()


if __name__ == "__main__":
    main()
