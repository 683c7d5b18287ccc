"""What a call does on a GPU, and on the host for it."""

import torch


def profiled(call):
    """The names of what a call does on the host, and of what is done on the device."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):  # a process's first one loads what it needs
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        with torch.profiler.record_function("the call"):
            call()
        torch.cuda.synchronize()
    host, device = [], []
    for event in profile.events():
        (host if event.device_type == torch.autograd.DeviceType.CPU else device).append(event)
    (during,) = (event.time_range for event in host if event.name == "the call")
    host = [event for event in host if during.start <= event.time_range.start <= during.end]
    return [event.name for event in host + device]
