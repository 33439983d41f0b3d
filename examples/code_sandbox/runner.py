"""Runs the hidden tests of one submission, inside the sandbox: each test in a process of its own.

`order.json` has the program (the submission with the tests behind it), the names of the tests and a nonce; it is gone
before any code of the submission runs, and what is printed counts only with the nonce. A test has passed when its
process gives back the token that it reads after the test has returned: to leave early, to print or to exit with 0 is no
pass. What is left to a submission that knows this file is to read the token too early, in its own process.
"""

import ctypes
import json
import os
import secrets
import subprocess
import sys

TIMEOUT_S = 5
NOT_DUMPABLE = 4

CHILD = """
import os, sys, types
answer = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
module = sys.modules["program"] = types.ModuleType("program")
exec(compile(eval(sys.stdin.readline()), "program.py", "exec"), module.__dict__)
vars(module)[sys.argv[1]]()
os.write(answer, sys.stdin.readline().encode())
os._exit(0)
"""


def main() -> None:
    """Run all tests, and print the nonce with the names of those that passed."""
    ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)  # its memory and its pipes are closed to its children
    with open("order.json", encoding="utf-8") as file:
        order = json.load(file)
    os.remove("order.json")
    passed = [name for name in order["tests"] if passes(name, order["program"])]
    print(order["nonce"], json.dumps(passed))


def passes(name: str, program: str) -> bool:
    """Run one test."""
    token = secrets.token_hex(16)
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-c", CHILD, name],
            input=f"{program!r}\n{token}".encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.stdout == token.encode()


if __name__ == "__main__":
    main()
