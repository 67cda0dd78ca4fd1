"""The guard of the test suite: no test may touch a database that is not made for tests."""

from __future__ import annotations

import pytest
from conftest import check_test_url

TEST = "postgresql://u:p@localhost:5432/rag_test"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@localhost:5432/rag",
        "postgresql://u:p@localhost:5432/rag_test2",
        "postgresql://u:p@localhost:5432/test",
        "postgresql://u:p@localhost:5432/rag_TEST",
        "postgresql://u:p@localhost:5432/rag?application_name=x_test",
        "postgresql://u:p@localhost:5432/rag?dbname=x",
        "postgresql://u:p@localhost:5432/rag_test?dbname=rag",
        "postgresql://u:p@localhost:5432/",
        "postgresql://u:p@localhost:5432",
        "postgresql://rag_test@localhost",
    ],
)
def test_a_name_that_does_not_end_in_test_is_refused(url: str) -> None:
    with pytest.raises(pytest.UsageError, match="must end in _test"):
        check_test_url(url, None)


@pytest.mark.parametrize("database_url", [None, ""])
def test_without_a_database_url_a_test_database_is_accepted(database_url: str | None) -> None:
    check_test_url(TEST, database_url)


@pytest.mark.parametrize(
    "database_url",
    [
        TEST,
        "postgres://u:p@localhost:5432/rag_test",
        "postgresql://other:word@localhost:5432/rag_test",
        "postgresql://localhost:5432/rag_test?sslmode=disable",
        "postgresql://localhost/rag_test",
        "postgresql://LocalHost/rag_test",
        "postgresql://127.0.0.1/rag_test",
        "postgresql://127.0.0.1:5432/rag_test",
        "postgresql://[::1]/rag_test",
        "postgresql:///rag_test",
        "postgresql:///rag_test?host=localhost",
        "postgresql:///rag_test?host=127.0.0.1&port=5432",
        "postgresql:///rag_test?port=5432",
        "postgresql://elsewhere/rag_test?host=localhost",
        "postgresql:///?dbname=rag_test",
        "postgresql:///other?dbname=rag_test",
        "postgresql://localhost/rag%5Ftest",
        "postgresql://rag_test@localhost",
        "postgresql:///rag_test?hostaddr=127.0.0.1",
        "postgresql://db.test/rag_test?hostaddr=127.0.0.1",
        "postgresql:///rag_test?host=LOCALHOST",
        "postgresql://localhost./rag_test",
        "postgresql://127.0.0.2/rag_test",
        "postgresql://[0:0:0:0:0:0:0:1]/rag_test",
    ],
)
def test_the_users_database_is_refused_in_any_spelling(database_url: str) -> None:
    with pytest.raises(pytest.UsageError, match="same database as DATABASE_URL"):
        check_test_url(TEST, database_url)


@pytest.mark.parametrize(
    "test_url",
    [
        "postgresql:///rag_test?host=127.0.0.1",
        "postgresql://[::1]/rag_test",
        "postgresql:///x?dbname=rag_test",
    ],
)
def test_the_spelling_of_the_test_url_does_not_matter_either(test_url: str) -> None:
    with pytest.raises(pytest.UsageError, match="same database as DATABASE_URL"):
        check_test_url(test_url, TEST)


def test_a_socket_folder_counts_as_the_host() -> None:
    url = "postgresql:///rag_test?host=/var/run/postgresql"
    with pytest.raises(pytest.UsageError, match="same database as DATABASE_URL"):
        check_test_url(url, "postgresql://u:p@/rag_test?host=/var/run/postgresql&port=5432")


@pytest.mark.parametrize(
    "database_url",
    [
        "postgresql://u:p@localhost:5432/rag",
        "postgresql://u:p@localhost:5432/rag_test_test",
        "postgresql://u:p@localhost:5433/rag_test",
        "postgresql://u:p@db.test:5432/rag_test",
        "postgresql:///rag_test?host=db.test",
        "postgresql:///rag_test?port=5433",
    ],
    ids=["name", "longer-name", "port", "host", "host-parameter", "port-parameter"],
)
def test_another_name_port_or_host_is_accepted(database_url: str) -> None:
    check_test_url(TEST, database_url)


@pytest.mark.parametrize("url", ["host=h dbname=rag_test", "dbname=rag user=x_test", "mysql://h/rag_test"])
def test_a_test_url_that_is_no_postgres_url_is_refused(url: str) -> None:
    with pytest.raises(pytest.UsageError):
        check_test_url(url, None)
