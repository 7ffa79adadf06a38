"""What `closelook submit --working-dir` sends, and what it never sends."""

from pathlib import Path

import pytest

from closelook.jobs.commands.submit import environment

KEYS = (
    ".env",
    ".env.local",
    "app/.env",
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".config/gcloud/application_default_credentials.json",
    ".cache/huggingface/token",
    ".ray/auth_token",
    ".netrc",
    "keys/server.pem",
    "keys/server.key",
    "id_rsa",
    "my-credentials.json",
    ".git/config",
)
CODE = {
    "jobs/__main__.py": "import sys\n",
    "jobs/secrets.py": "",
    "models/tokenizer.json": "{}",
    "environment.yaml": "a: 1",
}
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path):
    for name, content in {**dict.fromkeys(KEYS, "secret"), **CODE}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def sent(folder):
    """The files that Ray sends of a folder."""
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    files = []
    with environment(None, folder, ()) as made:
        assert made["working_dir"] == str(folder)
        _dir_travel(folder, [_get_excludes(folder, made["excludes"])], files.append, include_gitignore=True)
    return {str(path.relative_to(folder)) for path in files if path.is_file()}


def test_keys_tokens_and_passwords_of_a_working_directory_are_not_sent(folder):
    assert sent(folder) == CODE.keys()


@pytest.mark.parametrize("room", ["jobs", "evaluation"])
def test_no_file_of_this_package_is_left_out(room):
    folder = REPOSITORY / room
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if "__pycache__" not in path.parts}
    assert kept <= sent(folder)
