"""A compiled detector as a service: an image is posted, and what is in it is the answer.

    from tvm_passes import serve

    serve.run("detector", port=8000)

Ray Serve runs the network: a replica for each GPU, in a process of its own, which fills batches from whatever
images wait and is replaced when it dies. The process that was started has the HTTP server, for which Serve's
own is not used: that one reads any body into memory, however long and however slowly it comes, and loses the
requests of a replica that dies.

    app.py, bodies.py, line.py, metrics.py -> replicas.py -> [replica.py, answers.py] in each worker

`server.py` is the HTTP server, `service.py` the whole, and `page/` what a browser gets. `pip install
"tvm-vision-passes[ray]"` has what it needs.
"""

from .errors import ServeError
from .limits import Limits
from .service import run

__all__ = ["Limits", "ServeError", "run"]
