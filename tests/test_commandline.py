"""The command line: what it accepts, and one line for whatever it doesn't."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spheroid_jax import config, fields
from spheroid_jax.commandline import Options, load, overrides, parse
from spheroid_jax.validation import ConfigError

ROOT = Path(__file__).parents[1]

GOOD = """
from ml_collections import ConfigDict
from spheroid_jax import config
from spheroid_jax.fields import at_size

SIZES = {"quick": {}, "small": {"train.rounds": 24}}

def get_config(size="quick"):
    c = at_size(config.default(), SIZES, size)
    c.sweep = ConfigDict()
    c.sweep.axis = "model.layers"
    c.sweep.cells = ("model.layers=1", "model.layers=2")
    c.sweep.log_x = False
    c.sweep.series = ("ce_chain",)
    return c
"""

FILES = {
    "good.py": GOOD,
    "empty.py": "",
    "syntax.py": "def get_config(:\n",
    "raises.py": "def get_config():\n    raise KeyError('width')\n",
    "lines.py": "def get_config():\n    raise ValueError('one\\ntwo')\n",
    "plain.py": "def get_config():\n    return {'seed': 0}\n",
    "nothing.py": "def get_config():\n    pass\n",
    "sized.py": "def get_config(size):\n    return None\n",
    "typo.py": GOOD.replace("train.rounds", "train.round"),
    "typed.py": GOOD.replace("24", "'many'"),
    "text": GOOD,
}


@pytest.fixture(autouse=True)
def _configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with config files of its own under ``configs/``."""
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def options(line: str) -> Options:
    return parse(shlex.split(line))


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """The one line with which ``line`` is refused, without its ``error: ``."""
    with pytest.raises(SystemExit) as caught:
        options(line)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err.removeprefix("error: ").rstrip()


class TestAccepted:
    def test_a_file_alone_gives_its_own_default_size(self) -> None:
        result = options("--config=configs/good.py")
        assert result.config.size == "quick"
        assert result.workdir == ""
        assert not result.resume
        assert result.command == "python -m experiments.run --config=configs/good.py"

    def test_a_size_after_a_colon(self) -> None:
        result = options("--config=configs/good.py:small").config
        assert (result.size, result.train.rounds) == ("small", 24)

    @pytest.mark.parametrize(
        ("words", "field", "value"),
        [
            ("--config.train.rounds=8", "train.rounds", 8),
            ("--config.train.rounds 8", "train.rounds", 8),
            ("-config.train.rounds=8", "train.rounds", 8),
            ("--config.train.rounds=1_000", "train.rounds", 1000),
            ("--config.train.rounds=7 --config.train.rounds=8", "train.rounds", 8),
            ("--config.train.learning_rate=1", "train.learning_rate", 1.0),
            ("--config.train.learning_rate=1e-3", "train.learning_rate", 1e-3),
            ("--config.diffusion.p_mean=-2", "diffusion.p_mean", -2.0),
            ("--config.diffusion.p_mean -2.5", "diffusion.p_mean", -2.5),
            ("--config.data.corpus='file:a b=c'", "data.corpus", "file:a b=c"),
            ("--config.data.mirror=", "data.mirror", ""),
            ("--config.methods=end_to_end", "methods", ("end_to_end",)),
            (
                "--config.methods=block_sized,blocktrain",
                "methods",
                ("block_sized", "blocktrain"),
            ),
            ("--config.methods=\"('blocktrain',)\"", "methods", ("blocktrain",)),
            ("--config.sweep.log_x", "sweep.log_x", True),
            ("--config.sweep.log_x --noconfig.sweep.log_x", "sweep.log_x", False),
            ("--config.sweep.log_x=true", "sweep.log_x", True),
        ],
    )
    def test_overrides_take_the_type_of_their_field(
        self, words: str, field: str, value: object
    ) -> None:
        found = fields.leaves(options(f"--config=configs/good.py {words}").config)
        assert found[field] == value
        assert type(found[field]) is type(value)

    def test_an_override_may_stand_before_the_file(self) -> None:
        result = options("--config.train.rounds=8 --config configs/good.py:small")
        assert (result.config.size, result.config.train.rounds) == ("small", 8)

    @pytest.mark.parametrize("form", ["--workdir=a/b", "--workdir a/b"])
    def test_workdir_and_resume(self, form: str) -> None:
        result = options(f"--config=configs/good.py {form} --resume")
        assert (result.workdir, result.resume) == ("a/b", True)

    def test_the_command_can_be_typed_again(self) -> None:
        line = "--config=configs/good.py '--config.data.corpus=file:a b' --workdir=c"
        first = parse(shlex.split(line), program="experiments.sweep")
        words = shlex.split(first.command)
        assert words[:3] == ["python", "-m", "experiments.sweep"]
        again = parse(words[3:], program="experiments.sweep")
        assert again.command == first.command
        assert again.config.data.corpus == "file:a b"

    def test_the_result_takes_no_new_fields(self) -> None:
        c = options("--config=configs/good.py").config
        with pytest.raises(AttributeError):
            c.train.round = 8

    def test_one_parse_leaves_nothing_for_the_next(self) -> None:
        options("--config=configs/good.py --config.train.rounds=8 --resume")
        second = options("--config=configs/good.py")
        assert second.config.train.rounds == 20
        assert not second.resume

    def test_help_explains_and_succeeds(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            options("--help")
        assert caught.value.code == 0
        text = capsys.readouterr().out
        for word in ("--config", "--workdir", "--resume", "configs/b3_l4.py:quick"):
            assert word in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "--config is missing: add --config=configs/b3_l4.py"),
        ("--resume", "--config is missing: add --config=configs/b3_l4.py"),
        ("--config", "argument --config: expected one argument (--help explains)"),
        ("--config=", "--config has no file: write --config=configs/b3_l4.py"),
        ("--config.train.rounds=8", "--config is missing"),
        (
            "--config=configs/goood.py",
            "there is no config file configs/goood.py: did you mean configs/good.py?",
        ),
        (
            "--config=good",
            "there is no config file good: did you mean configs/good.py?",
        ),
        (
            "--config=configs",
            "configs is a directory: name a config file, such as configs/",
        ),
        ("--config=zzz.py", "there is no config file zzz.py: see configs/"),
        (
            "--config=configs/text",
            "configs/text: not a Python file: its name must end in .py",
        ),
        ("--config=configs/empty.py", "configs/empty.py has no function get_config"),
        ("--config=configs/syntax.py", "configs/syntax.py failed with SyntaxError: "),
        (
            "--config=configs/raises.py",
            "configs/raises.py failed with KeyError: 'width'",
        ),
        ("--config=configs/lines.py", "configs/lines.py failed with ValueError: one"),
        (
            "--config=configs/plain.py",
            "get_config of configs/plain.py returned dict: return a ConfigDict",
        ),
        (
            "--config=configs/nothing.py",
            "get_config of configs/nothing.py returned NoneType: return a ConfigDict",
        ),
        (
            "--config=configs/plain.py:quick",
            "get_config of configs/plain.py takes no size: "
            "use --config=configs/plain.py",
        ),
        (
            "--config=configs/sized.py",
            "get_config of configs/sized.py needs a size: "
            "use --config=configs/sized.py:SIZE",
        ),
        (
            "--config=configs/good.py:smal",
            "configs/good.py: unknown size 'smal': the sizes are quick, small",
        ),
        ("--config=configs/good.py:", "configs/good.py: unknown size ''"),
        (
            "--config=configs/typo.py:small",
            "configs/typo.py: there is no field train.round: "
            "did you mean train.rounds?",
        ),
        ("--config=configs/typed.py:small", "configs/typed.py failed with TypeError"),
    ],
)
def test_a_config_file_that_does_not_work(
    capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert refused(capsys, line).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--config.train.round=8",
            "there is no field train.round: did you mean train.rounds?",
        ),
        (
            "--config.train.round 8",
            "there is no field train.round: did you mean train.rounds?",
        ),
        (
            "--config.rounds=8",
            "there is no field rounds: did you mean train.rounds?",
        ),
        (
            "--config.every=8",
            "there is no field every: did you mean checkpoint.every or eval.every?",
        ),
        (
            "--config.mesh.zzz=8",
            "there is no field mesh.zzz: use one of mesh.block, mesh.fsdp, mesh.repl",
        ),
        ("--config.zzz=8", "there is no field zzz: begin with one of checkpoint, data"),
        ("--config.=8", "there is no field : begin with one of"),
        ("--config.methods[0]=x", "there is no field methods[0]: did you mean methods"),
        (
            "--config.mesh=8",
            "mesh is a section, not a field: set one of mesh.block, mesh.fsdp,",
        ),
        (
            "--config.train.rounds=2.5",
            "train.rounds=2.5 is not a whole number: write a whole number, such as 20",
        ),
        ("--config.train.rounds=1e3", "train.rounds=1e3 is not a whole number"),
        ("--config.train.rounds=", "train.rounds= is not a whole number"),
        ("--config.train.rounds=true", "train.rounds=true is not a whole number"),
        ("--noconfig.train.rounds", "train.rounds=false is not a whole number"),
        (
            "--config.train.clip=off",
            "train.clip=off is not a number: write a number, such as 1.0",
        ),
        (
            "--config.sweep.log_x=2",
            "sweep.log_x=2 is not true or false: write true or false",
        ),
        ("--noconfig.sweep.log_x=1", "--noconfig.sweep.log_x=1 has a value too many"),
        ("--config.methods=\"('a',\"", "methods=('a', is not a tuple: write a tuple"),
        (
            "--config.train.rounds",
            "--config.train.rounds has no value: write --config.train.rounds=VALUE",
        ),
        ("--config.train.rounds --resume", "--config.train.rounds has no value"),
        ("--config.train.learning_rate=nan", "train.learning_rate=nan must be finite"),
        ("--config.train.rounds=-3", "train.rounds=-3 must be at least 1"),
        ("--config.methods='(1, 2)'", "methods=(1, 2) has element 1, which must be"),
        ("--config.sweep.series='(0,)'", "sweep.series=(0,) has element 0, which must"),
        ("--config.model.heads=5", "model.heads=5 does not divide model.width=64"),
        (
            "--config.mesh.block=300",
            "mesh.block=300 mesh.replica=1 mesh.fsdp=1 does not",
        ),
        (
            "--config.train.rounds=0 --config.model.heads=5",
            "train.rounds=0 must be at least 1; model.heads=5 does not divide",
        ),
        ("extra", "'extra' is left over"),
        ("--resum", "there is no option --resum: did you mean --resume?"),
        ("--work=x", "there is no option --work: did you mean --workdir?"),
        ("--zzz", "there is no option --zzz: --help lists the options"),
        (
            "--train.rounds=8",
            "there is no option --train.rounds: did you mean --config.train.rounds=8?",
        ),
        (
            "--rounds=8",
            "there is no option --rounds: did you mean --config.train.rounds=8?",
        ),
        ("--flagfile=flags.txt", "there is no option --flagfile"),
        ("-- --config.train.rounds=8", "there is no option --"),
        ("--resume=yes", "argument --resume: ignored explicit argument 'yes'"),
        ("--workdir", "argument --workdir: expected one argument"),
        ("--workdir=", "--workdir has no directory: write --workdir=DIR"),
        (
            "--workdir=configs/good.py",
            "--workdir=configs/good.py is not a directory: name another",
        ),
        ("--config.name='a\nb'", "name=a b must be letters"),
    ],
)
def test_arguments_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    line = f"--config=configs/good.py {words}"
    assert refused(capsys, line).startswith(message)


def test_without_config_files_the_way_out_is_another_folder(
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    line = refused(capsys, "--config=configs/b3_l4.py")
    assert line.endswith("run from the checkout's root")


def test_a_mistake_costs_no_compile(tmp_path: Path) -> None:
    """A real process, which logs whatever JAX compiles."""
    code = (
        "import logging, sys\n"
        "import jax\n"
        "jax.config.update('jax_log_compiles', True)\n"
        "logging.basicConfig(stream=sys.stderr)\n"
        "from spheroid_jax.commandline import parse\n"
        "parse(sys.argv[1:])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, "--config=configs/good.py", "--config.seed=-1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: seed=-1 must be at least 0")


class TestOverrides:
    """The cells of a sweep speak the language of the command line."""

    def test_a_validated_copy(self) -> None:
        base = config.default()
        result = overrides(base, " train.rounds=8  model.layers=2\n")
        assert (result.train.rounds, result.model.layers) == (8, 2)
        assert (base.train.rounds, base.model.layers) == (20, 4)

    def test_of_a_locked_sweep_it_is_one_plain_experiment(self) -> None:
        base = load("configs/good.py")
        base.lock()
        assert "sweep" not in overrides(base, "train.rounds=8")
        assert "sweep" in base

    def test_values_may_hold_spaces_quotes_and_equal_signs(self) -> None:
        text = (
            "data.corpus=file:my texts/a=b methods=('blocktrain', 'end_to_end') seed=1"
        )
        result = overrides(config.default(), text)
        assert result.data.corpus == "file:my texts/a=b"
        assert result.methods == ("blocktrain", "end_to_end")
        assert result.seed == 1

    def test_references_follow(self) -> None:
        base = config.default()
        base.eval.windows = base.eval.get_ref("batch") * 4
        assert overrides(base, "eval.batch=8").eval.windows == 32
        assert base.eval.windows == 64

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("train.round=8", "did you mean train.rounds"),
            ("train.rounds=2.5", "not a whole number"),
            ("train.rounds=0", "train.rounds=0 must be at least 1"),
            ("train.rounds 8", "write field=value"),
            ("", "write field=value"),
            ("train.rounds=8 model.layers", "not a whole number"),
            ("model.width=65", "model.heads=4 does not divide model.width=65"),
        ],
    )
    def test_the_same_errors(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            overrides(config.default(), text)
        assert "\n" not in str(caught.value)
