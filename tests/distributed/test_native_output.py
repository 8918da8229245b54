"""A page of XLA's log becomes one line; what is none of the end passes."""

import io

import pytest

from spheroid_jax.distributed.native_output import digest

EXPECT = "\0expect error: process 2 of 3 ends: {who} died; resume\n"
# As jaxlib 0.10 prints them, shortened.
SERVICE = (
    "E1129 22:21:03.290444   18659 coordination_service.cc:1549] [43] Use error "
    "polling to propagate the following error to all tasks: UNAVAILABLE: The "
    "following tasks are unhealthy (stopped sending heartbeats):\n"
)
AGENT = (
    "E1129 22:21:03.291112   18676 coordination_service_agent.cc:289] Polled an error "
    "from coordination service (this can be an error from this or another task).\n"
    "F1129 22:21:03.291311   18676 client.h:80] Terminating process because the JAX "
    "distributed service detected fatal errors. absl::Status: UNAVAILABLE: The "
    "following tasks are unhealthy (stopped sending heartbeats):\n"
)
LEADER = (
    "F1129 22:21:09.048515   18929 client.h:80] Terminating process because the JAX "
    "distributed service detected fatal errors. absl::Status: UNAVAILABLE: Failed to "
    "send RPC to coordination service. Either the leader task was preempted.\n"
)
CRASHED = "The tasks have crashed. Check the task logs for an earlier error.\n"
TRACE = "*** Check failure stack trace: ***\n    @     0x7f20c2220634  absl::x()\n"


def said(*texts: str) -> str:
    screen = io.StringIO()
    digest([line for text in texts for line in text.splitlines(True)], screen)
    return screen.getvalue()


@pytest.mark.parametrize(
    ("log", "who"),
    [
        (AGENT + "1\n" + CRASHED + TRACE, "process 1"),
        (SERVICE + "1\n2\n" + CRASHED + AGENT + "1\n2\n" + TRACE, "processes 1 and 2"),
        (AGENT + "/job:jax_worker/replica:0/task:12\n" + TRACE, "process 12"),
        (LEADER + TRACE, "process 0"),
    ],
)
def test_a_page_of_log_is_one_line_that_names_the_lost(log: str, who: str) -> None:
    assert said(EXPECT, log) == f"error: process 2 of 3 ends: {who} died; resume\n"


def test_last_words_win_over_all_that_follows() -> None:
    assert said(EXPECT, "\0end error: process 1 failed\n", AGENT, TRACE) == (
        "error: process 1 failed\n"
    )


def test_no_last_words_are_silence() -> None:
    """What had to be said has been said by Python."""
    assert said("round 1\n", EXPECT, "\0end \n", AGENT, TRACE) == "round 1\n"


def test_ordinary_lines_pass_and_chatter_does_not() -> None:
    rest = " peer ranks. Expected number of connected peer ranks is : 1\n"
    chatter = f"[Gloo] Rank 0 is connected to 1{rest}"
    mixed = (
        f"[Gloo] Rank [Gloo] Rank 0 is connected to 1{rest}1 is connected to 1{rest}"
    )
    lines = ("\n", "a warning of CUDA\n", chatter, "\n", mixed, "[Gloo] failed\n")
    assert said(*lines) == "a warning of CUDA\n[Gloo] failed\n"


def test_a_log_that_ends_nothing_is_shown_as_it_is() -> None:
    assert said(EXPECT, SERVICE, "1\n") == SERVICE + "1\n"


def test_the_newest_expectation_is_the_one_that_is_said() -> None:
    early = "\0expect error: not all came together\n"
    assert said(early, LEADER) == "error: not all came together\n"
    assert said(early, EXPECT, LEADER).startswith("error: process 2 of 3 ends")
