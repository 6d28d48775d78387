"""`python -m cstp_grpc` is the `cstp` command."""

from cstp_grpc.cli.entry import run_program

if __name__ == "__main__":
    run_program()
