import sys, warnings

warnings.simplefilter("ignore")
import topi_ext, torch, tvm_passes
from tests.benchmarks import _common as common
from tests.benchmarks.bench_super_resolution import network_of, prepared

name = sys.argv[1]
net, img = network_of(name)
t = common.tensor_core_target("cudnn-frontend")
ours = prepared(net.half(), img.half(), t)
x = img.half().cuda()
for _ in range(3):
    ours(x)
torch.cuda.synchronize()
from torch.profiler import profile, ProfilerActivity

with profile(activities=[ProfilerActivity.CUDA]) as p:
    for _ in range(5):
        ours(x)
    torch.cuda.synchronize()
rows = {}
for e in p.events():
    k = e.name[:110]
    d = e.device_time if hasattr(e, "device_time") else e.cuda_time
    a = rows.setdefault(k, [0, 0])
    a[0] += d / 5
    a[1] += 1
tot = sum(a[0] for a in rows.values())
print("==", name, "total us", round(tot), "kernels", sum(a[1] for a in rows.values()) / 5)
for k, a in sorted(rows.items(), key=lambda kv: -kv[1][0])[:18]:
    print(f"{a[0]:9.1f} us {a[1] / 5:6.1f}x {k}")
