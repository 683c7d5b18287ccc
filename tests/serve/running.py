"""A service in this process, without Ray: its network is whatever function a test gives."""

import asyncio
import contextlib
import threading

SECONDS = 60  # to start


@contextlib.contextmanager
def running(detect, limits, at_once=1, health=None):
    """The URL of a service whose `detect` is a coroutine function of an image and a threshold."""
    from tvm_passes.serve.app import Service
    from tvm_passes.serve.line import Line
    from tvm_passes.serve.metrics import Metrics
    from tvm_passes.serve.server import bound, server_of

    async def healthy():
        return {"RUNNING": 1}

    line = Line(at_once, limits.max_queued)
    service = Service(detect, health or healthy, limits, line, Metrics(line))
    is_ready = threading.Event()
    with bound("127.0.0.1", 0) as here:
        server = server_of(service.app, 1, is_ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[here])))
        thread.start()
        try:
            assert is_ready.wait(SECONDS)
            yield f"http://127.0.0.1:{here.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()
