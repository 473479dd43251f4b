"""The scripts of the pages about launchers run as they are written, as far as this machine can run them."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PATIENCE = 300.0
ENDED = re.compile(r"ε = 2\.338 after 100 steps")


def block(page, language):
    """The first block of a page in this language."""
    return re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL).group(1)


def write_script(folder):
    """Writes the script of the page about torchrun, which the other pages use unchanged."""
    (folder / "train.py").write_text(block("launch/torchrun.md", "python"))
    (folder / "state").mkdir()


def environment(folder, **more):
    """Where `torchrun` is found as a command, and the package as a module."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "torchrun").write_text(f'#!/bin/bash\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
    (commands / "torchrun").chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PATH": path, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **more}


def run(command, folder, **more):
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, **more), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_script_for_torchrun_runs_on_two_processes(tmp_path):
    write_script(tmp_path)
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    assert ENDED.search(run(command, tmp_path, RUN_FOLDER=str(tmp_path / "state")))


@pytest.mark.slow
def test_the_script_for_slurm_runs_where_slurms_commands_are_stood_in_for(tmp_path):
    """`srun` and `scontrol` are stand-ins for one machine: this shows the shell and torchrun's options, and no Slurm."""
    write_script(tmp_path)
    text = block("launch/slurm.md", "bash")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (tmp_path / "job.sh").write_text(text.replace("--nproc-per-node 4", "--nproc-per-node 2"))
    environment(tmp_path)
    for name, lines in {"srun": 'exec "$@"', "scontrol": 'echo "localhost"'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    said = run(
        ["bash", "job.sh"],
        tmp_path,
        SLURM_NNODES="1",
        SLURM_JOB_ID="7",
        SLURM_JOB_NODELIST="localhost",
        SLURM_SUBMIT_DIR=str(tmp_path),
    )
    assert ENDED.search(said)


@pytest.mark.slow
def test_the_commands_for_skypilot_run_on_one_machine(tmp_path):
    """The `run` part, with the variables that SkyPilot sets; machines and buckets are not tried."""
    yaml = pytest.importorskip("yaml")
    write_script(tmp_path)
    task = yaml.safe_load(block("launch/skypilot.md", "yaml"))
    commands = (
        task["run"].replace("--nproc-per-node 4", "--nproc-per-node 2").replace("/state", str(tmp_path / "state"))
    )
    said = run(
        ["bash", "-c", commands],
        tmp_path,
        SKYPILOT_NODE_IPS="127.0.0.1",
        SKYPILOT_NUM_NODES="1",
        SKYPILOT_NODE_RANK="0",
    )
    assert ENDED.search(said)


def test_skypilot_reads_the_file_where_it_is_installed(tmp_path):
    sky = pytest.importorskip("sky")
    (tmp_path / "task.yaml").write_text(block("launch/skypilot.md", "yaml"))
    task = sky.Task.from_yaml(str(tmp_path / "task.yaml"))
    assert task.num_nodes == 2


@pytest.mark.slow
def test_the_function_for_ray_runs_on_two_workers_where_ray_is_installed(tmp_path):
    """The page's function with a model and data of its own; `…` stands for those on the page."""
    pytest.importorskip("ray")
    pytest.importorskip("pandas")  # which Ray Train needs
    given = """\
    def loss(model, x, y):
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0))
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    model = torch.nn.Linear(6, 2)
    """
    text = block("launch/ray.md", "text")
    line = next(line for line in text.splitlines() if line.lstrip().startswith("model, data = …"))
    text = text.replace(line, textwrap.indent(textwrap.dedent(given), "    "))
    text = text.replace(
        "    ray.train.report(", "    print('epsilon', round(claim.epsilon, 3), flush=True)\n    ray.train.report("
    )
    text = text.replace("num_workers=2)", f"num_workers=2), run_config=RunConfig(storage_path={str(tmp_path)!r})")
    (tmp_path / "train.py").write_text(text)
    said = run([sys.executable, "train.py"], tmp_path, RAY_memory_monitor_refresh_ms="0")  # others may fill the memory
    assert said.count("epsilon 2.338") == 2  # each worker says it
    shutil.rmtree(tmp_path / "bin")
