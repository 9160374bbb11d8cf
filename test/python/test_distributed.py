# ===- test_distributed.py - ranks over process groups of PyTorch's --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`Trainer(distributed="ddp")`: the bits of one rank that has the batches of all, files of the first rank alone, and ends that every rank has alike."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import rank_programs as programs
import torch
import torch.distributed as dist
import warm
from nets import Adapters
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sample import drawn
from torch.distributed import checkpoint

import segue

ROOT = Path(__file__).resolve().parents[2]
RUN = os.environ.get("SEGUE_RUN", str(ROOT / "build" / "bin" / "segue-run"))
TWO = 2
KILLS = int(os.environ.get("SEGUE_KILLS", 10))  # of both ranks by turns; `make check-long` has more
#: What an error of the transport begins with: the tensor that was to be sent is named where there was one.
FAILED = r"RANK_FAILED: (f32\[.*\] was never written: a sum over ranks: )?"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What is compiled once for all ranks and tests."""
    return tmp_path_factory.mktemp("cache")


class Group:
    """Processes of one program. Those that are left end with the `with` block."""

    def __init__(self, place, cache, program, count=TWO, meet=None, **arguments):
        self.processes = []
        for rank in range(count):
            own = place / f"rank{rank}"
            own.mkdir(parents=True, exist_ok=True)
            environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(count), "MEET": meet or f"file://{place}/meet", "OMP_NUM_THREADS": "1",
                                        "SEGUE_CACHE_DIR": str(cache), "TMPDIR": "/tmp"}
            self.processes.append(subprocess.Popen([warm.python(), programs.__file__, program, json.dumps(arguments)], cwd=own, env=environment, text=True,
                                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def done(self, rank, seconds=60):
        """How a rank has ended, and what its program has returned."""
        process = self.processes[rank]
        out, error = process.communicate(timeout=seconds)
        found = re.findall(r"^RESULT (.*)$", out, re.M)
        return SimpleNamespace(code=process.returncode, out=out, error=error, result=json.loads(found[-1]) if found else None)

    def results(self, seconds=60):
        """What all ranks have returned, who have ended well and said nothing on stderr."""
        ended = [self.done(rank, seconds) for rank in range(len(self.processes))]
        for each in ended:
            assert each.code == 0 and each.result is not None and not each.error, each.out[-2000:] + each.error[-4000:]
        return [each.result for each in ended]


@pytest.fixture
def ranks(tmp_path, cache):
    return lambda program, count=TWO, **more: Group(tmp_path, cache, program, count, **more)


@pytest.fixture
def alone(cache, monkeypatch, tmp_path):
    """Runs a program in this process, as one rank."""
    monkeypatch.setenv("SEGUE_CACHE_DIR", str(cache))
    monkeypatch.chdir(tmp_path)
    return lambda program, **more: json.loads(json.dumps(getattr(programs, program)(**more)))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def same(results):
    """The one thing that all ranks have returned."""
    assert all(each == results[0] for each in results), results
    return results[0]


# --- bits -----------------------------------------------------------------------------------

def test_two_ranks_are_one_with_two_batches(ranks, alone, tmp_path):
    """Losses, norms, parameters and states to the bit, whatever each rank's budget does."""
    modes = drawn(programs.MODES, 2, "bits")
    with ranks("bits", modes=modes) as group:
        expected = alone("bits", modes=["in memory"], grad_accumulation=2)["in memory"]
        found = same(group.results(120))
    assert len(expected[0]) == 20 and len({loss for loss, _ in expected[0]}) == 20
    for mode in modes:
        assert found[mode] == expected, mode
    if "by marks" in modes:
        records = [json.loads(line) for line in (tmp_path / "rank0/activations.jsonl").read_text().splitlines()]
        assert [record["step"] for record in records] == list(range(1, 21)) and records[-1]["activations_spilled"] > 0
    assert [path.name for path in (tmp_path / "rank1").iterdir()] == []


def test_forms_are_those_of_one_rank_with_all_batches(ranks, alone, tmp_path):
    """Selective Precision decides alike on every rank, and the first alone writes."""
    save_file({n: p.detach() for n, p in Adapters().named_parameters() if ".base." in n}, tmp_path / "base.safetensors")
    subprocess.run([RUN, "quantize", tmp_path / "base.safetensors", "-o", tmp_path / "slab"], check=True, timeout=60, capture_output=True)
    with ranks("forms", slab=str(tmp_path / "slab")) as group:
        found = same(group.results())
    expected = alone("forms", slab=str(tmp_path / "slab"))
    assert found == expected and {"int8", "bf16"} == set(found["forms"].values())
    decided = lambda path: [json.loads(line) | {"timestamp": 0} for line in path.read_text().splitlines()]  # noqa: E731
    assert decided(tmp_path / "rank0/precision.jsonl") == decided(tmp_path / "precision.jsonl")
    assert not (tmp_path / "rank1/precision.jsonl").exists()


def test_masks_are_those_of_one_rank_with_all_batches(ranks, alone):
    with ranks("masks") as group:
        expected = alone("masks", grad_accumulation=2)
        assert same(group.results()) == expected and len(set(expected)) == 10


def test_three_ranks_that_add_in_order_and_a_group_of_two(ranks, alone):
    """A group of the first and third rank trains by itself; the second is told that it is not in it."""
    with ranks("three", 3) as group:
        three = programs.train(programs.trainer_of(grad_accumulation=3), 20)
        two = programs.train(programs.trainer_of(grad_accumulation=2), 20)
        found = group.results()
    assert same([each["all"] for each in found]) == three
    assert found[0]["pair"] == found[2]["pair"] == two and len(set(two)) == 20
    assert [each["rank"][:2] for each in (found[0], found[2])] == [[0, 2], [1, 2]] and "rank 1 of 2" in found[2]["rank"][2]
    assert found[1]["pair"][0] == "InvalidArgumentError" and "not in the process group" in found[1]["pair"][1]


def test_states_that_are_shared_out(ranks, alone, tmp_path):
    """Losses, parameters and checkpoints are those of one rank, and each rank has half of the states; `fit` goes on from where it was."""
    with ranks("shared_out", folder=str(tmp_path)) as group:
        expected = alone("alone_of_shared_out", folder=str(tmp_path))
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    found = [each.result for each in done]
    assert same([each["losses"] for each in found]) == expected["losses"] and same([each["parameters"] for each in found]) == expected["parameters"]
    for each in found:
        both = each["with gradients"]
        assert both["losses"] == expected["losses"] and both["parameters"] == expected["parameters"]
        assert both["gradients"][0] == "InvalidArgumentError" and "take whole steps" in both["gradients"][1], both["gradients"]
    first, second = (set(each["states"]) for each in found)
    assert not first & second and first | second == set(expected["states"]) and min(len(first), len(second)) >= 2
    assert (tmp_path / "shared.safetensors").read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    assert same([each["rest"] for each in found]) == found[0]["whole"][5:] and len(found[0]["rest"]) == 10
    assert [each["unwritable"][0] for each in found] == ["FileError", "RankFailedError"] and "rank 0 cannot save" in found[1]["unwritable"][1]
    assert same([each["frozen"] for each in found])[0] == "UnsupportedError"


@pytest.mark.parametrize("tied", [False, True])
def test_modules_one_behind_the_other(ranks, alone, tmp_path, tied):
    """Of three ranks each has some of the modules, in whatever mode, and losses, norms, means of evaluations, parameters, PyTorch's, too, and files are
    those of one; also where the first and the last share a parameter."""
    modes = drawn(programs.MODES, 3, "pipelined")
    with ranks("pipelined", 3, folder=str(tmp_path), tied=tied, modes=modes) as group:
        expected = alone("pipelined", folder=str(tmp_path), tied=tied, modes=["in memory"])["in memory"]
        done = [group.done(rank) for rank in range(3)]
    assert [each.code for each in done] == [0, 0, 0], "".join(each.error for each in done)
    found = [each.result for each in done]
    for mode in modes:
        for each in found:
            for what in ("taken", "evaluated", "parameters", "modules", "file"):
                assert each[mode][what] == expected[what], (mode, what)
        elsewhere = [set(each[mode]["elsewhere"]) for each in found]
        assert not set.intersection(*elsewhere) and all(len(each) >= 4 for each in elsewhere)
    for each in found:
        assert "take whole steps" in each["gradients"][1], each["gradients"]
        assert each["others"][0] == "RankFailedError" and "every rank of a pipeline is given the same batches" in each["others"][1]
        assert tied or each["stages"][0] == "InvalidArgumentError" and "stages are given for 2 ranks" in each["stages"][1], each["stages"]


def test_parameters_that_are_gathered(alone, cache, tmp_path):
    """By `torchrun`: losses, norms, parameters and files of one rank, whatever each rank's budget does; what all call brings all values."""
    modes = drawn(programs.MODES, 2, "gathered")
    done = torchrun(tmp_path, cache, "--no-python", warm.python(), programs.__file__, "gathered", json.dumps({"folder": str(tmp_path), "modes": modes}),
                    seconds=240)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in re.findall(r"^RESULT (.*)$", done.stdout, re.M)]
    assert len(found) == TWO
    found.sort(key=lambda each: each["own"])
    expected = alone("alone_of_gathered", folder=str(tmp_path))
    assert len({loss for loss, _ in expected["taken"]}) == 20
    for mode in modes:
        for each in (rank[mode] for rank in found):
            assert each["taken"] == expected["taken"] and each["parameters"] == expected["parameters"] and each["same"], mode
        assert sorted(rank[mode]["evaluated"] for rank in found) == sorted(expected["evaluated"])
        first, second = (set(rank[mode]["states"]) for rank in found)
        assert not first & second and first | second == set(expected["states"])
    first, second = (set(rank["own"]) for rank in found)
    assert first | second == set(expected["parameters"]) and first - second and second - first
    for name, other in (("gathered", "alone"), ("weights", "alone-weights")):
        assert (tmp_path / f"{name}.safetensors").read_bytes() == (tmp_path / f"{other}.safetensors").read_bytes()
    for rank in found:
        assert rank["next"] == [expected["next"]] * 3
        assert rank["gradients"][0] == "InvalidArgumentError" and "take whole steps" in rank["gradients"][1]
        assert rank["written"][0] == "InvalidArgumentError" and "was changed in PyTorch" in rank["written"][1]


def test_fit_gathers_parameters(ranks, tmp_path):
    """It goes on from where it was, keeps the best weights, and leaves them in PyTorch's modules. Who evaluates alone is told so."""
    with ranks("fit_gathered", folder=str(tmp_path)) as group:
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    first, second = (each.result for each in done)
    assert first["whole"] == second["whole"] and first["rest"] == second["rest"] == first["whole"][7:] and len(first["whole"]) == 12
    assert first["weights"] == second["weights"] and first["weights"][0] == first["weights"][1]
    assert [each["alone"][0] for each in (first, second)] == ["RankFailedError"] * 2
    assert '"a batch is evaluated"' in first["alone"][1], first["alone"]
    assert first["failing"][0] == "RankFailedError" and "row 21 cannot be read" in first["failing"][1] and second["failing"] == ["ValueError", "row 21 cannot be read"]


def test_models_without_bytes(ranks, tmp_path):
    """PyTorch's models have no bytes on any rank, and train as those of one rank that have."""
    alone = segue.Trainer([programs.gpt("cpu:threads=1")], optimizer=programs.adamw(), clip_grad_norm=1.0, grad_accumulation=2)
    alone.save_weights(tmp_path / "weights.safetensors")
    modes = drawn(programs.MODES, 2, "without bytes")
    with ranks("without_bytes", folder=str(tmp_path), modes=modes) as group:
        batches = [[programs.gpt_batch(i, part) for part in range(TWO)] for i in range(5)]
        losses = [alone.step(*(torch.cat(each) for each in zip(*of_step))).hex() for of_step in batches]
        expected = {key: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for key, tensor in alone.parameters().items()}
        first, second = group.results()
    for name in modes:
        for found in (first[name], second[name]):
            assert found == {"losses": losses, "parameters": expected, "bare": True}, name
    assert first["drawn"] and second["drawn"] and first["pipeline"] == second["pipeline"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_checkpoints_with_a_file_of_each_rank(ranks, alone, tmp_path, strategy):
    """What one rank has, in two files of a size that other tools read; any number of ranks goes on from there, `fit` where each was."""
    with ranks("in_folder", folder=str(tmp_path), strategy=strategy) as group:
        one = programs.trainer_of(grad_accumulation=2)
        expected = programs.train(one, 10)
        one.save("alone.safetensors")
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    first, second = (each.result for each in done)
    assert first["losses"] == second["losses"] == expected
    assert first["unwritable"][0] == "FileError" and second["unwritable"][0] == "RankFailedError" and "rank 0 cannot save" in second["unwritable"][1]
    assert second["on one"][0] == "FileError" and first["on one"][0] == "RankFailedError" and "rank 1 cannot save: IO_FAILED" in first["on one"][1]
    assert first["rest"] == second["rest"] == first["whole"][7:] and len(first["rest"]) == 8
    assert [name for name in os.listdir(tmp_path) if name.startswith(f"fit of {strategy}.best-")]

    folder = tmp_path / strategy
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(first["after"]) == 3 and sorted(os.listdir(folder)) == sorted([*files, "model.safetensors.index.json"]) and len(files) == TWO
    segue.export_checkpoint(folder, "all.safetensors")
    assert Path("all.safetensors").read_bytes() == Path("alone.safetensors").read_bytes()
    tensors = load_file("alone.safetensors")
    bytes_of = dict.fromkeys(files, 0)
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, framework="pt") as part:
            assert torch.equal(part.get_tensor(name), tensors[name])
        bytes_of[file] += tensors[name].nbytes
    assert set(index["weight_map"]) == set(tensors) and index["metadata"]["total_size"] == sum(bytes_of.values())
    if strategy != "zero3":  # where the largest parameter, which is most of this model, and its states are those of one rank
        assert max(bytes_of.values()) < 0.6 * sum(bytes_of.values())
    # PyTorch's distributed checkpoints.
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    checkpoint.load(found, storage_reader=checkpoint.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)

    resumed = programs.trainer_of(programs.compiled(3), grad_accumulation=2)
    assert resumed.resume(folder) == {} and programs.train(resumed, 3, first=10) == programs.train(one, 3, first=10)
    with pytest.raises(segue.InvalidArgumentError, match=r"of a run of 2 ranks, .*; there is 1 now\. Load it by trainer.resume"):
        resumed.fit([programs.batch(0, 0)], checkpoint=tmp_path / f"fit of {strategy}", resume=True)


def test_values_and_seed_are_those_of_the_first_rank(ranks, alone):
    with ranks("values") as group:
        expected = alone("values_of_one")
        assert same(group.results()) == expected


# --- what ranks write -----------------------------------------------------------------------

def test_the_first_rank_alone_writes(ranks, tmp_path):
    with ranks("files") as group:
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    (first, refused), (second, also_refused) = (each.result for each in done)
    assert {"activations.jsonl", "run.html", "run.json", "run.safetensors", "plain/all.safetensors", "plain/weights.safetensors"} < set(first), first
    assert any(path.startswith("logs/") for path in first) and any(".best-" in path for path in first)
    table = json.loads((tmp_path / "rank0/run.html").read_text().split('<script type="application/json" id="data">')[1].split("</script>")[0])["ranks"]
    assert [line["rank"] for line in table] == [0, 1] and all(line["messages"] >= 8 and line["seconds_per_step"] > 0 for line in table)
    trace = json.loads((tmp_path / "rank0/run.json").read_text())
    assert {"a sum over ranks", "messages to ranks"} <= {event["name"] for event in trace["traceEvents"]} and trace["otherData"]["network"]["seconds"] > 0
    assert second == []
    assert done[1].error == "" and "parameters and states" not in done[1].out
    assert same([refused, also_refused])[0] == "UnsupportedError" and "leave seal away" in refused[1]


def test_fit_goes_on_where_each_rank_was(ranks, alone, tmp_path):
    """Losses, evaluations, parameters and states to the bit, in mid-epoch, with random numbers of each rank's own."""
    with ranks("fit", folder=str(tmp_path)) as group:
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    found = [each.result for each in done]
    for each in found:
        assert len(each["whole"]) == 15 and each["part"] == each["whole"][:7] and each["rest"] == each["whole"][7:] and each["steps"] == 7
        # The run that was stopped was evaluated where it was, too.
        assert each["evaluations"] == each["rest evaluations"][:1] + each["rest evaluations"][2:] and len(each["evaluations"]) == 3
        assert each["digests"] == found[0]["digests"] and len(set(each["digests"])) == 1
        assert each["mean"][0] == pytest.approx(each["mean"][1], rel=1e-6) and each["mean"] == found[0]["mean"]
        assert each["whole"] == found[0]["whole"]
    assert [each["stopped"] for each in found] == ["rank 1: rank had enough", "rank had enough"]
    # Another number of ranks has the values, and no places in the data.
    trainer = programs.trainer_of()
    assert "fit" in trainer.resume(tmp_path / "run.safetensors") and trainer.step_count == 15
    with pytest.raises(segue.InvalidArgumentError, match=r"of a run of 2 ranks, .*; there is 1 now\. Load it by trainer.resume"):
        programs.trainer_of().fit([programs.batch(0, 0)], checkpoint=tmp_path / "run.safetensors", resume=True)


# --- errors ---------------------------------------------------------------------------------

def test_an_error_of_one_rank_ends_fit_on_all(ranks):
    with ranks("failing_fits") as group:
        first, second = group.results()
    failed = "RankFailedError"
    assert second["loader"] == ["ValueError", "row 21 cannot be read"]
    assert first["loader"][0] == failed and "rank 1 has given up: fit ended with ValueError: row 21 cannot be read" in first["loader"][1]
    assert first["callback"][0] == "KeyError" and "rank 0 has given up: fit ended with KeyError" in second["callback"][1]
    for name, words in (("lengths", "batches per epoch of fit: rank 0 has 4, and rank 1 has 5"), ("checkpoint", "checkpoint of fit: rank 0 has True, and rank 1 has False")):
        assert same([first[name], second[name]])[0] == failed and words in first[name][1]
    assert first["ends"][0] == failed and 'rank 0 is at "fit after epoch 1", and rank 1 at "step 5, begin"' in first["ends"][1]
    assert second["metric"][0] == "InvalidArgumentError" and "rank 1 cannot evaluate: InvalidArgumentError: metric 'bad' gave 'none'" in first["metric"][1]
    assert first["alone"][0] == second["alone"][0] == failed and 'rank 0 is at "an evaluation", and rank 1 at "step 1, begin"' in first["alone"][1]


def test_nan_of_one_rank_stops_all_before_any_update(ranks, alone):
    with ranks("nan") as group:
        first, second = group.results()
        expected = programs.train(programs.trainer_of(grad_accumulation=2), 10)
    assert first["error"][0] == "RankFailedError" and "rank 1 cannot take step 4: NAN_LOSS: step 4: the loss is nan" in first["error"][1]
    assert second["error"][0] == "NanLossError" and first["kept"] and second["kept"]
    assert first["losses"] == second["losses"] == expected and first["digest"] == second["digest"]  # and all go on


def test_what_differs_is_refused_by_name(ranks):
    with ranks("differing") as group:
        first, second = group.results()
    for name, words in {
            "module": 'parameter "net.0.weight" differs: rank 0 has ["f32[32,16]",true], and rank 1 has ["f32[34,16]",true]', "optimizer": "decay=0.1",
            "kind": "and rank 1 has ('sgd:", "clip": "the norm that gradients are clipped to differs: rank 0 has 1.0, and rank 1 has 2.0",
            "rates": "learning rates differ: rank 0 has [0.1], and rank 1 has [1.1]", "schedules": "learning rates differ: rank 0 has [0.0], and rank 1 has [0.001]",
            "frozen": 'parameter "net.0.weight" differs'}.items():
        assert same([first[name], second[name]])[0] == "RankFailedError" and words in first[name][1], first[name]
    for name, words in {"steps": 'rank 0 is at "step 3, begin", and rank 1 at "step 2, begin"', "calls": 'rank 0 is at "an evaluation", and rank 1 at "step 1, begin"'}.items():
        assert first[name][0] == second[name][0] == "RankFailedError" and words in first[name][1], first[name]


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("options, kind, words", [
    ({"distributed": "ddp"}, segue.InvalidArgumentError, "torchrun --nproc-per-node 2 train.py.*init_process_group"),
    ({"distributed": "tensor"}, segue.UnsupportedError, "not there yet; \"ddp\" is, .* \"zero1\", \"zero2\" and \"zero3\".*\"pipeline\""),
    ({"distributed": "dpp"}, segue.InvalidArgumentError, "distributed is 'dpp'; there are ddp, zero1, zero2, zero3, pipeline"),
    ({"distributed": "zero1", "stages": [1, 2]}, segue.InvalidArgumentError, "stages says how many modules each rank of a pipeline has"),
    ({"stages": [1, 2]}, segue.InvalidArgumentError, "stages is about several ranks"),
    ({"bucket_mb": 1}, segue.InvalidArgumentError, "bucket_mb is about several ranks; give distributed=\"ddp\", too"),
    ({"distributed": "ddp", "bucket_mb": 0}, segue.InvalidArgumentError, "bucket_mb is 0; it is the MiB of a message"),
    ({"messages": "nccl"}, segue.InvalidArgumentError, "messages is about several ranks"),
    ({"distributed": "ddp", "messages": "mpi"}, segue.InvalidArgumentError, "messages is 'mpi'; there are auto, host, nccl"),
    ({"distributed": "ddp", "reduction": "tree"}, segue.InvalidArgumentError, "reduction is 'tree'; it is \"ordered\""),
])
def test_what_cannot_be_is_said(alone, options, kind, words):
    with pytest.raises(kind, match=words):
        programs.trainer_of(**options)


def test_a_group_of_one_rank_is_one_rank(alone, one_rank):
    expected = programs.train(programs.trainer_of(distributed=None), 5)
    trainer = programs.trainer_of()
    assert trainer.ranks == 1 and programs.train(trainer, 5) == expected
    assert len(trainer.fit([programs.batch(0, 0)] * 3, evaluate_on=[programs.batch(1, 0)])) == 3


# --- GPUs -----------------------------------------------------------------------------------

@pytest.fixture
def fake_gpus(tmp_path, monkeypatch):
    """Processes that are started see the fake driver, and the fake NCCL."""
    twins = tmp_path / "twins"
    twins.mkdir()
    for variable, file in (("SEGUE_CUDA_LIBRARY", "libSegueFakeCuda.so"), ("SEGUE_CUBLASLT_LIBRARY", "libSegueFakeCublasLt.so"),
                           ("SEGUE_NCCL_LIBRARY", "libSegueFakeNccl.so")):
        monkeypatch.setenv(variable, str(Path(RUN).parents[1] / "lib" / file))
    for variable in ("SEGUE_GPU_TWINS", "FAKE_CUDA_TWINS"):
        monkeypatch.setenv(variable, str(twins))


def test_ranks_on_gpus_send_by_nccl(fake_gpus, tmp_path):
    """With the bits of one GPU, as by way of the host; and a rank that is killed ends the other by name."""
    cache = tmp_path / "cache"  # of code for GPUs, whose twins lie here
    with Group(tmp_path / "one", cache, "on_gpus", 1, ways=["auto"], grad_accumulation=2) as group:
        losses, digest, said = same(group.results())["auto"]
    assert said == []
    with Group(tmp_path / "two", cache, "on_gpus", ways=["host", "auto", "nccl"]) as group:
        found = group.done(0).result
    for way in ("host", "auto", "nccl"):
        assert found[way][:2] == [losses, digest]
    assert found["host"][2] == []
    assert all("go by NCCL 22707, from GPU to GPU" in found[way][2][0] for way in ("auto", "nccl"))
    assert found["killed"][0] == "RankFailedError" and "rank 1 has died" in found["killed"][1], found["killed"]


# --- ends -----------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["destroy before", "destroy after", "step after", "another trainer"])
def test_a_program_ends_as_it_likes(ranks, how):
    """The process group goes before the trainer or after it, which has a group of its own; nobody waits, and nothing is on stderr."""
    with ranks("ends", how=how) as group:
        began = time.monotonic()
        same(group.results())
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("how, words", [("deleted on one", "its trainer or its program has ended$"), ("exit", "its trainer or its program has ended$"),
                                        ("exception", "its trainer or its program has ended: ValueError: the data of rank 1 is gone$")])
def test_a_rank_that_leaves_is_named(ranks, how, words):
    with ranks("ends", how=how) as group:
        done = [group.done(rank) for rank in range(TWO)]
    assert done[0].code == 0 and done[0].result[0] == "RankFailedError" and re.search(f"RANK_FAILED: rank 1 left the others: {words}", done[0].result[1]), done[0]
    assert done[1].code == (how == "exception")


def test_no_rank_goes_on_before_all_have_connections(ranks):
    """One that left at once would break those that another is still making."""
    with ranks("connects", how="slowly") as group:
        for seconds, error in group.results():
            assert error == ["", ""] and seconds >= 0.4


@pytest.mark.parametrize("how, words", [("fails", r"the connections between ranks failed when connections were made \(Gloo connectFullMesh failed with .*no connection\)"),
                                        ("dies", r"rank 1 has died: process \d+ of this machine is no longer there"),
                                        ("dies before", r"rank 1 has died: process \d+ of this machine is no longer there")])
def test_connections_that_fail_are_a_rank_that_fails(ranks, how, words):
    with ranks("connects", how=how) as group:
        done = [group.done(rank) for rank in range(TWO)]
    for each in done[:1 if how.startswith("dies") else TWO]:
        seconds, (kind, text) = each.result
        assert kind == "RankFailedError" and re.fullmatch(f"RANK_FAILED: {words}", text) and seconds < 10, each


def test_ranks_that_are_killed_end_the_others_and_the_run_goes_on(ranks, alone, tmp_path):
    """At random moments, either rank: the other says at once who has died, and checkpoints are whole."""
    moments = random.Random(3)
    expected = programs.train(programs.trainer_of(grad_accumulation=2), 40 * KILLS)
    taken, resumed = {}, 0
    for kill in range(KILLS):
        (tmp_path / "meet").unlink(missing_ok=True)
        which = kill % 2
        with ranks("dies", folder=str(tmp_path), after=moments.random() * 0.25, which=which, steps=40 * KILLS) as group:
            done = [group.done(rank) for rank in range(TWO)]
        found = done[1 - which].result
        assert done[which].code == -signal.SIGKILL and done[1 - which].code == 0, done[which].error + done[1 - which].error
        assert re.search(FAILED + rf"rank {which} has died: process \d+ of this machine", found["error"][1]) and found["waited"] < 2, found
        resumed += min(map(int, found["losses"]), default=0) > 0
        taken |= found["losses"]
    assert resumed > 0.4 * KILLS and len(taken) > 30
    assert all(loss == expected[int(step)] for step, loss in taken.items())


def test_ctrl_c_on_all_ranks(ranks, alone, tmp_path):
    """Each ends with it, also who waits for another rank and hears of its end first; what was saved last is whole."""
    with ranks("interrupted", folder=str(tmp_path)) as group:
        until = time.monotonic() + 60
        while not (tmp_path / "rank1/waits").exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)  # the first rank has come to the meeting
        for rank in range(TWO):
            os.kill(int((tmp_path / f"rank{rank}/pid").read_text()), signal.SIGINT)
        first, second = (group.done(rank, 30) for rank in range(TWO))
    assert first.code == second.code == 0, first.error + second.error
    assert second.result[0] == "KeyboardInterrupt"
    assert first.result[0] == "KeyboardInterrupt" and first.result[2] == "RankFailedError", first.result
    with programs.trainer_of() as trainer:
        trainer.resume(tmp_path / "run.safetensors")
        assert trainer.step_count == 10


def test_ranks_that_are_killed_while_all_save_leave_a_whole_checkpoint(ranks, alone, tmp_path):
    """At random moments of a run that does little else, either rank, with states that are shared out."""
    moments = random.Random(4)
    expected = programs.train(programs.trainer_of(grad_accumulation=2), 40 * KILLS)
    folder = tmp_path / "checkpoints"
    taken, resumed = {}, 0
    for kill in range(KILLS):
        (tmp_path / "meet").unlink(missing_ok=True)
        which = kill % 2
        with ranks("dies", folder=str(tmp_path), after=moments.random() * 0.2, which=which, checkpoint="checkpoints/", every=1, strategy="zero1", steps=40 * KILLS) as group:
            done = [group.done(rank) for rank in range(TWO)]
        found = done[1 - which].result
        assert done[which].code == -signal.SIGKILL and done[1 - which].code == 0, done[which].error + done[1 - which].error
        assert f"rank {which} has died: process" in found["error"][1] and found["waited"] < 2, found
        resumed += min(map(int, found["losses"]), default=0) > 0
        taken |= found["losses"]
    assert resumed > 0.3 * KILLS and len(taken) > 8
    assert all(loss == expected[int(step)] for step, loss in taken.items())
    trainer = programs.trainer_of(grad_accumulation=2)
    trainer.resume(folder)
    first = trainer.step_count
    assert programs.train(trainer, 3, first=first) == expected[first:first + 3]
    trainer.save(folder)
    assert len(list(folder.iterdir())) == 2


def test_ranks_that_hang_are_named(ranks, cache, tmp_path):
    """By whoever waits first, within the timeout: one that is stopped, the one that has the store of the group, and one that does something else."""
    with (ranks("dies", folder=str(tmp_path), after=0.2, which=1, signal_name="SIGSTOP", seconds=2) as stopped,
          Group(tmp_path / "store", cache, "dies", meet=f"tcp://127.0.0.1:{free_port()}", folder=str(tmp_path / "store"), after=0.2, which=0, signal_name="SIGSTOP", seconds=2) as store,
          Group(tmp_path / "spins", cache, "spins", count=3, seconds=3) as spins):
        for group, which in ((stopped, 1), (store, 0)):
            found = group.done(1 - which).result
            assert re.search(FAILED + rf"rank {which} did not come within 2 s: process \d+ of this machine is stopped", found["error"][1]), found["error"]
            assert 2 < found["waited"] < 8
        for rank in (0, 2):
            error = spins.done(rank).result
            assert error[0] == "RankFailedError" and re.search(FAILED + "rank 1 did not come within 3 s", error[1]), error


# --- torchrun -------------------------------------------------------------------------------

@contextlib.contextmanager
def started_torchrun(folder, cache, *words, python=None):
    """Starts a program on two ranks, as in a terminal of its own. Its processes have imported PyTorch already, as the agent has, but for another `python`."""
    command = [python or warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, words)]
    # PyTorch 2.13 gives processes that it starts again the store of those before, where they find addresses of these.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SEGUE_CACHE_DIR": str(cache), "TMPDIR": "/tmp", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()  # it ends its ranks; nobody if it has ended
        process.wait(60)


def torchrun(folder, cache, *words, seconds=120):
    """Runs a program on two ranks to its end."""
    with started_torchrun(folder, cache, *words) as process:
        out, error = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def steps_of(text):
    return re.findall(r"^step \d+ loss .*$", text, re.M)


def test_the_example_has_the_losses_of_one_rank(cache, tmp_path):
    """By `torchrun`, as its head says; and it goes on from its checkpoint."""
    example = ROOT / "examples" / "two_ranks.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SEGUE_CACHE_DIR": str(cache)}
    alone = subprocess.run([warm.python(), example], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert alone.returncode == 0, alone.stderr
    expected = steps_of(alone.stdout)
    assert len(expected) == 20 and float(expected[-1].split()[-1]) < float(expected[0].split()[-1])
    found = []
    for steps in (10, 20):
        done = torchrun(tmp_path, cache, "--no-python", warm.python(), example, "--checkpoint", tmp_path / "run.safetensors", "--steps", steps)
        assert done.returncode == 0, done.stderr[-4000:]
        found.append(steps_of(done.stdout))
    assert found == [expected[:10], expected[10:]]


def test_ctrl_c_in_the_terminal_of_torchrun(cache, tmp_path):
    """Every rank ends with it behind its step, and what was saved last is what one rank has after as many steps."""
    words = [programs.__file__, "ctrl_c", json.dumps({"strategy": "zero2"})]
    with started_torchrun(tmp_path, cache, *words, python=sys.executable) as process:  # a warm one would not hand signals on
        while not all((tmp_path / f"steps{rank}").exists() for rank in range(TWO)) or int((tmp_path / "steps1").read_text() or 0) < 12:
            assert process.poll() is None, process.communicate()[1][-4000:]
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    results = [json.loads(text) for text in re.findall(r"^RESULT (.*)$", out, re.M)]
    assert [result[0] for result in results] == ["KeyboardInterrupt"] * TWO, out + error[-4000:]
    steps = [result[1] for result in results]
    assert min(steps) >= 12 and max(steps) - min(steps) <= 1
    with programs.trainer_of() as trainer, programs.trainer_of(grad_accumulation=2) as alone:
        trainer.resume(tmp_path / "run.safetensors")
        assert trainer.step_count % 5 == 0 and 0 <= max(steps) - trainer.step_count <= 5
        for step in range(trainer.step_count):
            programs.train(alone, 1, first=step % 8)
        assert programs.digest(trainer) == programs.digest(alone)


def test_torchrun_starts_a_run_again_when_a_rank_has_died(ranks, cache, tmp_path):
    """From the last checkpoint, each rank where it was in its data and its random numbers."""
    (tmp_path / "whole").mkdir()
    with ranks("restarts", folder=str(tmp_path / "whole")) as group:
        whole = [group.done(rank) for rank in range(TWO)]
    expected = same([each.result for each in whole])
    assert len(expected) == 15
    done = torchrun(tmp_path, cache, "--max-restarts", 1, "--monitor-interval", 0.1, "--no-python", warm.python(), programs.__file__, "restarts", json.dumps({"folder": str(tmp_path)}))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "exitcode: -9" in done.stderr or "Signal 9" in done.stderr, done.stderr[-4000:]
    results = [json.loads(text) for text in re.findall(r"^RESULT (.*)$", done.stdout, re.M)]
    assert results == [expected[8:]] * 2  # checkpoints are written after steps 4 and 8


# --- loops of PyTorch's -----------------------------------------------------------------------

@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_distributed_data_parallel_of_pytorch_takes_compiled_models(ranks, how):
    """Gradients of a compiled model are PyTorch's: its DistributedDataParallel adds them up, and its optimizers use them."""
    with ranks("torch_ddp", how=how) as group:
        done = [group.done(rank) for rank in range(TWO)]
    assert [each.code for each in done] == [0, 0], done[0].error + done[1].error
    found = same([each.result for each in done])
    assert len(set(found["eager"])) == 8
    torch.testing.assert_close(found["segue"], found["eager"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["segue weights"], found["eager weights"], rtol=1e-5, atol=1e-6)


# --- transports of others -----------------------------------------------------------------------


class Threads:
    """A transport between threads: what somebody writes who has another library of messages."""

    seconds = 20.0

    def __init__(self, rank, offers, meeting):
        self.rank, self.ranks = rank, meeting.parties
        self._offers, self._meeting = offers, meeting

    def _met(self, offer):
        self._offers[self.rank] = offer
        self._meeting.wait(self.seconds)
        offers = list(self._offers)
        self._meeting.wait(self.seconds)
        return offers

    def all_gather(self, part, whole):
        whole.cast("B")[:] = b"".join(self._met(bytes(part)))

    def all_reduce(self, data): ...
    def reduce(self, data, root): ...
    def reduce_scatter(self, whole, part): ...
    def broadcast(self, data, root): ...
    def send(self, data, to): ...
    def receive(self, data, source): ...
    def abandon(self, why): ...
    def look(self): ...
    def missed(self, what): ...


def test_a_transport_of_somebody_elses():
    """Any object with its methods is one."""
    offers, meeting = [None] * TWO, threading.Barrier(TWO)

    def on(rank):
        collectives, said = segue._runtime.Collectives.over(segue._runtime.Device.open("cpu:threads=1"), Threads(rank, offers, meeting), 1 << 20)
        return collectives.rank, collectives.ranks, collectives.exchange("a greeting", f"from {rank}")

    with ThreadPoolExecutor(TWO) as pool:
        assert list(pool.map(on, range(TWO))) == [(rank, TWO, ["from 0", "from 1"]) for rank in range(TWO)]


def test_a_transport_that_lacks_a_method_is_refused():
    """It was taken for a rank that has failed, when it was missed in the midst of a step."""
    class Less(Threads):
        look = missed = property()

    with pytest.raises(segue.InvalidArgumentError, match="lacks look, missed; it has the methods of segue.distributed.GroupTransport"):
        segue._runtime.Collectives.over(segue._runtime.Device.open("cpu:threads=1"), Less(0, [None], threading.Barrier(1)), 1 << 20)
