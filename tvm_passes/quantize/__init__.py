"""Post-training quantization: what int8 needs to know about a network, and the pass that uses it.

passes = tvm_passes.detection_pipeline(target, dtype="int8")
calibration = tvm_passes.quantize.calibrate(mod, images, passes, params)
print(calibration)
calibration.save("detector.json")

calibration = tvm_passes.quantize.Calibration.read("detector.json")
passes = tvm_passes.detection_pipeline(target, dtype="int8", calibration=calibration)
"""

from .calibration import Calibration, CalibrationError, Observed
from .imported import calibration_of
from .observe import calibrate

__all__ = ["Calibration", "CalibrationError", "Observed", "calibrate", "calibration_of"]
