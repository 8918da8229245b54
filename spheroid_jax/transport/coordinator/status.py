"""What there is to see of a run: the dashboard's and Prometheus' source."""

from typing import Any

from spheroid_jax.transport.coordinator.board import Board
from spheroid_jax.transport.coordinator.member import Member

SHOWN_ROUNDS = 200


def describe(board: Board, run: str) -> dict[str, Any]:
    """The status as JSON; see ``docs/protocol.md``."""
    b, now = board, board.now()
    settings, history, members = b.settings, b.history, b.members
    deadline = settings.policy.deadline
    blocks = [
        {
            "block": n,
            "workers": sum(slot.block == n for slot in members.held.values()),
            "heard": sum(slot.block == n for slot in b.heard),
            "participation": history.participation(n, settings.replicas),
            "last_trained": members.last_trained[n],
        }
        for n in range(settings.blocks)
    ]
    return {
        "run": run,
        "name": settings.welcome["config"]["name"],
        "size": settings.welcome["config"]["size"],
        "state": b.state,
        "why": b.why,
        "round": b.round,
        "rounds": settings.rounds,
        "opened_seconds": round(now - b.opened, 1),
        "deadline": None if deadline == float("inf") else deadline,
        "time": round(b.seconds, 1),
        "version": b.version,
        "blocks": blocks,
        "workers": [_worker(b, m, now) for m in sorted(members, key=lambda m: m.name)],
        "ce": list(history.ce),  # who shows it thins it: the start belongs to it
        "staleness": history.staleness(),
        "bytes": history.total_bytes(),
        "rounds_log": [
            {
                "round": r["round"],
                "seconds": r["seconds"],
                "heard": r["heard"],
                "timely": r.get("timely", r["heard"]),
                "expected": r["expected"],
                "bytes_up": r["bytes_up"],
                "bytes_down": r["bytes_down"],
                "age": r["age"],
            }
            for r in history.rounds[-SHOWN_ROUNDS:]
        ],
        "updates": {
            kind: sum(getattr(m, kind) for m in members)
            for kind in ("accepted", "late", "rejected")
        },
        "writable": not b.stuck,
        "problems": [{**p, "time": round(p["time"], 1)} for p in history.problems],
    }


def _worker(board: Board, member: Member, now: float) -> dict[str, Any]:
    slot = board.members.held.get(member.name)
    behind = member.live and 0 <= member.working < board.round
    state = "late" if behind else member.doing if member.live else "gone"
    seen = member.seen
    if board.members.is_starting(member, now):
        state, seen = "starting", member.came or seen
    return {
        "name": member.name,
        "block": None if slot is None else slot.block,
        "replica": None if slot is None else slot.replica,
        "state": state,
        "seen_seconds": round(now - seen, 1) if member.sessions.here else None,
        "accepted": member.accepted,
        "late": member.late,
        "rejected": member.rejected,
        # Of its newest update, while none after it was accepted.
        "reason": member.reason if member.failed else "",
        "age": member.age_sum / member.accepted if member.accepted else 0.0,
        "down": member.down,
        "up": member.up,
        "device": member.device,
        "seconds": {k: round(v, 2) for k, v in member.phases.items()},
    }
