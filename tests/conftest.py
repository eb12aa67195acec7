"""How the tests run: hypothesis draws the same examples every time, and takes as long as a slow machine needs."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "wdsplit",
    derandomize=True,
    deadline=None,
    max_examples=100,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("wdsplit")
