"""Notices reach every stream, and a stream that does not take them cannot hold the agent up."""

from node.notices import Notices
from protocol import unbroken_pb2 as pb


def test_every_open_stream_gets_the_notice() -> None:
    """And only while it is open."""
    notices = Notices()
    with notices.subscribe() as one, notices.subscribe() as two:
        notices.send(pb.NOTICE_KIND_ENGINE_DOWN, 7, "process_exit", "pid 1")

        assert [one.get_nowait().cause, two.get_nowait().cause] == ["process_exit", "process_exit"]  # type: ignore[union-attr]
    notices.send(pb.NOTICE_KIND_STOPPING, 7)
    assert one.empty()


def test_a_stream_that_takes_nothing_is_ended() -> None:
    """Its sentinel reconnects and reads the phase; the queue stays bounded."""
    notices = Notices()
    with notices.subscribe() as queue:
        for _ in range(queue.maxsize + 1):
            notices.send(pb.NOTICE_KIND_ENGINE_SERVING, 1)

        assert queue.get_nowait() is None
        notices.send(pb.NOTICE_KIND_ENGINE_SERVING, 1)
        assert queue.empty()
