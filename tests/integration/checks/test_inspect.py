"""`wdsplit.inspect`, `assign`, `plan`, `audit` and `verify` as programs call them; the commands print the same."""

import pytest

import wdsplit
from commands import done
from wdsplit.errors import InputError


def test_inspect_returns_what_the_command_prints(numbers):
    found, shown = wdsplit.inspect(numbers, samples=2), done("inspect", numbers, "--samples", 2, "--json").json
    manifest = found.manifest
    assert (found.num_samples, manifest.num_pads, len(manifest.shards)) == (101, 4, 7)
    assert shown | {"samples": 101, "pads": 4, "shards": 7, "bytes": manifest.num_bytes} == shown
    assert [shown[name] for name in ("lanes", "window", "fingerprint")] == [
        manifest.lanes,
        manifest.window,
        manifest.fingerprint,
    ]
    assert [*manifest.field_names] == ["cls", "txt"] == [field["name"] for field in shown["fields"]]
    assert [sample["txt"] for sample in found.first_samples] == [b"row 0", b"row 1"]
    assert manifest.provenance == shown["provenance"]


@pytest.mark.parametrize("lanes", [None, 2])
def test_assign_returns_what_the_command_prints(numbers, lanes):
    found = wdsplit.assign(numbers, 3, 2, batch_size=8, epoch=1, seed=7, tail="drop", lanes=lanes)
    options = ("--world-size", 3, "--workers", 2, "--batch-size", 8, "--epoch", 1, "--seed", 7, "--tail", "drop")
    shown = done("assign", numbers, *options, *([] if lanes is None else ["--lanes", lanes]), "--json").json
    shares = [vars(share) for share in found.readers]
    assert {**vars(found), "readers": shares} == shown
    assert [(share.rank, share.worker) for share in found.readers] == [(r, w) for r in range(3) for w in range(2)]


def test_assign_refuses_numbers_that_are_too_small(numbers):
    with pytest.raises(InputError, match="invalid options") as caught:
        wdsplit.assign(numbers, 0, -1)
    assert caught.value.found == "world_size = 0: expected at least 1; num_workers = -1: expected at least 0"


def test_audit_returns_its_findings_and_reports_each_as_it_comes(numbers):
    seen = []
    report = wdsplit.audit(numbers, wdsplit.AuditOptions(world_size=3, batch_size=4, epochs=2), seen.append)
    assert report.held and report.findings == tuple(seen)
    assert {finding.epoch for finding in seen} == {0, 1}
    assert wdsplit.audit(numbers).held
