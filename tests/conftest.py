"""How every test runs JAX: eight CPU devices, compiled programs kept between runs.

Set through the environment, before JAX is imported, so that the processes which tests
start run under the same settings.
"""

import os
from pathlib import Path

_DEVICES = "--xla_force_host_platform_device_count"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

# Tests compile much and compute little: LLVM's optimizer takes more than it gives.
_QUICK = "--xla_backend_optimization_level"

for _flag, _setting in ((_DEVICES, 8), (_QUICK, 0)):
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        _flags = f"{os.environ.get('XLA_FLAGS', '')} {_flag}={_setting}"
        os.environ["XLA_FLAGS"] = _flags.strip()

for _name, _value in {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(_CACHE / "spheroid_jax" / "compiled-for-tests"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # A broadcast that adds an axis unasked is a fault; the library never needs one.
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(_name, _value)

# Grain reads absl flags, which nobody parses under pytest.
from absl import flags  # noqa: E402

flags.FLAGS.mark_as_parsed()
