"""Tests of cookies of servers on one host, of runs without episodes and of partial runs."""

import shutil
from pathlib import Path

from starlette.testclient import TestClient

from selfplay.viewer.catalog import RunCatalogue
from selfplay.viewer.server import application
from tests.helpers.viewer_run import five_episodes


def test_two_servers_of_one_host_do_not_log_each_other_out(tmp_path: Path) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    made = five_episodes(tmp_path / "made")
    cookies: dict[str, str] = {}
    for _ in range(2):
        for token in ("one", "two"):
            server = application(RunCatalogue([made]), cache=tmp_path, token=token)
            with TestClient(server, base_url="http://10.0.0.7", cookies=cookies) as client:
                address = "/" if token in cookies.values() else f"/?token={token}"
                assert client.get(address).status_code == 200
                cookies = dict(client.cookies)
    assert sorted(cookies.values()) == ["one", "two"]


def test_a_run_without_episodes_names_the_setting_that_records_them(tmp_path: Path) -> None:
    made = five_episodes(tmp_path / "made")
    server = application(RunCatalogue([made]), cache=tmp_path)
    with TestClient(server, base_url="http://127.0.0.1") as client:
        assert "run.episodes_every" not in client.get("/run/made/episodes?text=nowhere").text
        shutil.rmtree(made / "episodes")
        assert "run.episodes_every" in client.get("/run/made/episodes").text


def test_a_run_folder_that_is_still_being_created_is_not_shown(tmp_path: Path) -> None:
    five_episodes(tmp_path / "made")
    partial = tmp_path / ".new.7.partial"
    partial.mkdir()
    (partial / "config.yaml").write_text("seed: 0\n")
    assert [each.name for each in RunCatalogue([tmp_path]).runs()] == ["made"]
