"""Names of driver packages by version and distribution."""

from __future__ import annotations

import pytest
from plumbline.errors import PlumblineError
from plumbline.host import driver


@pytest.mark.parametrize(
    ("version", "distribution", "kind", "names"),
    [
        ("580.105.08", "ubuntu2404", "bare",
         ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580", "nvidia-compute-utils-580"]),
        ("589.99.01", "ubuntu2204", "container", ["libnvidia-compute-589", "nvidia-utils-589"]),
        ("590.44.01", "ubuntu2204", "bare",
         ["libnvidia-compute", "nvidia-dkms-open", "nvidia-utils", "nvidia-compute-utils"]),
        ("595.58.03", "ubuntu2404", "container", ["libnvidia-compute", "nvidia-utils"]),
        ("580.105.08", "debian12", "bare", ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"]),
        ("595.58.03", "debian13", "container", ["nvidia-driver-cuda"]),
    ],
)  # fmt: skip
def test_the_branch_is_in_ubuntus_names_below_590_only(
    version: str, distribution: str, kind: str, names: list[str]
) -> None:
    found = driver.packages(version, distribution, kind)
    assert found["names"] == names
    assert found["specs"] == [f"{name}={version}-*" for name in names]
    assert found["pinning"] == f"nvidia-driver-pinning-{version}"


def test_no_proprietary_flavour_is_ever_named() -> None:
    for distribution in driver.DISTRIBUTIONS:
        for version in ("580.105.08", "595.58.03"):
            for extent in ("compute", "full"):
                kernel = [
                    n
                    for n in driver.packages(version, distribution, "bare", extent)["names"]
                    if "dkms" in n or "open" in n
                ]
                assert kernel and all("open" in n for n in kernel)


@pytest.mark.parametrize(
    ("version", "distribution", "said"),
    [("580", "debian12", "gpu_driver_version"), ("latest", "debian12", "exact"), ("550.54.15", "debian12", "560"),
     ("580.105.08", "fedora42", "debian12, debian13")],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_remedy(version: str, distribution: str, said: str) -> None:
    with pytest.raises(PlumblineError, match=said) as error:
        driver.packages(version, distribution, "bare")
    assert error.value.remedy


def test_the_exact_version_stands_before_the_rest_and_a_container_gets_no_module() -> None:
    text = driver.preferences("580.105.08", driver.packages("580.105.08", "debian12", "container"), "l=NVIDIA CUDA")
    pins = [line for line in text.splitlines() if line.startswith("Pin")]
    assert pins == ["Pin: release a=*", "Pin-Priority: -1", "Pin: version 580.105.08-*", "Pin-Priority: 1001",
                    "Pin: release l=NVIDIA CUDA", "Pin-Priority: 100",
                    "Pin: release a=*", "Pin-Priority: -1"]  # fmt: skip
    assert "nvidia-kernel*-dkms" in text.split("\n\n")[0]
