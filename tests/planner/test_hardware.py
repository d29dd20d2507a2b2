"""The table of devices, and users' own."""

from pathlib import Path

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.planner.hardware import Hardware, known_hardware, load_hardware

GIB = 2**30


@pytest.mark.parametrize("row", known_hardware().values(), ids=lambda row: row.name)
def test_each_row_is_whole_and_names_its_source(row: Hardware) -> None:
    assert len(row.source) > 10
    assert row.bandwidth > 50e9
    assert row.peak["f32"] <= max(row.peak.values())
    assert (row.kind == "cpu") == (row.memory is None)
    if row.visible_memory is not None:
        assert row.memory is not None
        assert 0.9 < row.visible_memory / row.memory < 1


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth", "memory"),
    [
        ("a100-40gb", 312, 1555, 40),
        ("a100-80gb", 312, 2039, 80),
        ("h100", 989.5, 3350, 80),
        ("H200", 989.5, 4800, 141),
        ("L4", 121, 300, 24),
        ("l40s", 362.05, 864, 48),
        ("RTX 4090", 165.2, 1008, 24),
        ("rtx_pro_6000", 500, 1597, 96),
        ("MI300X", 1307.4, 5300, 192),
    ],
)
def test_figures_of_the_data_sheets(
    name: str, bf16: float, bandwidth: float, memory: float
) -> None:
    device = load_hardware(name)
    assert device.peak_flops("bf16") == bf16 * 1e12
    assert device.bandwidth == bandwidth * 1e9
    assert device.memory == memory * GIB


def test_links_to_other_devices() -> None:
    h100, l4, cpu = (load_hardware(name) for name in ("h100", "l4", "epyc-9654"))
    assert (h100.peer_link, l4.peer_link) == (450e9, None)
    assert h100.peer_bandwidth == pytest.approx(0.8 * 450e9)
    assert l4.peer_bandwidth == l4.swap_bandwidth == pytest.approx(0.8 * 32e9)
    assert cpu.peer_bandwidth is None


def test_the_memory_that_a_recording_found_is_what_programs_see() -> None:
    """25,250,627,584 bytes, as CUDA told the RTX 4090's recording."""
    assert load_hardware("rtx-4090").usable_memory == pytest.approx(25_250_627_584, abs=2**20)


def test_peaks_of_dtypes_that_a_device_does_not_have() -> None:
    a100, h100, cpu = (load_hardware(name) for name in ("a100-80gb", "h100", "epyc-9654"))
    assert a100.peak_flops("fp8") == a100.peak["bf16"]
    assert h100.peak_flops("fp8") == 2 * h100.peak["bf16"]
    assert h100.peak_flops("int4") == h100.peak["bf16"]
    assert cpu.peak_flops("bf16") == cpu.peak["f32"]
    assert cpu.peak_flops("q4_k") == cpu.peak["f32"]


def test_a_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("memory: 48GiB\nbandwidth: 960\npeak: {bf16: 180, f32: 90}\n")
    device = load_hardware(str(path))
    assert (device.name, device.title, device.kind) == ("mine", "mine", "gpu")
    assert (device.memory, device.bandwidth) == (48 * GIB, 960e9)
    assert device.peak_flops("bf16") == 180e12
    assert device.source == str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory: 48GiB\npeak: {bf16: 180}", "bandwidth is None"),
        ("bandwidth: -1\npeak: {bf16: 180}", "bandwidth is -1"),
        ("bandwidth: 1", "peak must hold"),
        ("bandwidth: 1\npeak: {bf17: 1}", "the dtypes are f32, bf16"),
        ("bandwidth: 1\npeak: {bf16: yes}", "peak bf16 is True"),
        ("bandwidth: 1\npeak: {bf16: 1}\nmemory: lots", "memory: memory size 'lots'"),
        ("bandwidth: 1\npeak: {bf16: 1}\nkind: tpu", "kind is tpu"),
        ("bandwith: 1", "no setting 'bandwith'"),
        ("- 1", "must hold settings"),
        ("a: [", "not valid YAML"),
    ],
)
def test_files_that_describe_nothing(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_hardware(str(path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a100", "did you mean a100-40gb or a100-80gb"),
        ("rtx-4080", "did you mean rtx-4090"),
        ("abacus", "choose one of a100-40gb"),
        ("", "choose one of"),
        ("no/such.yaml", "cannot be read"),
    ],
)
def test_names_that_are_not_there(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_hardware(name)
