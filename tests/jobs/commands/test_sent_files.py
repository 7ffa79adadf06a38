"""What `closelook submit --working-dir` sends, and what it never sends."""

from pathlib import Path

import pytest

from closelook.jobs.commands.submit import SECRETS, Request, sent

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


def test_keys_tokens_and_passwords_of_a_working_directory_are_not_sent(folder):
    assert sent(folder) == (len(CODE), sum(map(len, CODE.values())))
    request = Request("run", None, None, (), 0, folder, ())
    with request.environment() as environment:
        assert environment["excludes"] == list(SECRETS)
        assert environment["working_dir"] == str(folder)


def test_no_file_of_this_package_is_left_out():
    before, after = (sent(folder) for folder in (REPOSITORY / "jobs", REPOSITORY / "evaluation"))
    for (count, _), name in ((before, "jobs"), (after, "evaluation")):
        kept = [path for path in (REPOSITORY / name).rglob("*.py") if "__pycache__" not in path.parts]
        assert count >= len(kept)
