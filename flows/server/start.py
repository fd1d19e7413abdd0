"""One start of a local server: its parts, in the order in which they need each other."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial

from flows.server import cluster, environment
from flows.server.database import DATABASE, Postgres, accepts_passwords
from flows.server.environment import ORCHESTRATOR, PAGES
from flows.server.ports import HOST, accepts_calls, free_port, has_worker, page_port, web_status
from flows.server.processes import Program, is_running, run_program, start_part, wait_until_answers
from flows.server.record import ServerError, ServerRecord, write_record
from storage.files.private import ensure_private_directory
from storage.settings import Settings

POOLS = ("private", "public")
WATCHER = "watcher"


class Start:
    """One start of the server; `postgres` keeps its runs, or says why SQLite does."""

    def __init__(
        self, settings: Settings, postgres: Postgres | str, log: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._postgres = postgres
        self._log = log
        self._folder = settings.server_home
        self._common = environment.inherited_environment(settings)
        self.record = ServerRecord(mark=os.urandom(16).hex())

    def run(self, port: int | None, n_workers: int | None) -> None:
        """Start every part and wait until each answers, see `flows.server.parts.start_server`."""
        for name in ("prefect", "client"):
            ensure_private_directory(self._folder / name)
        port = page_port(port)
        # The mark is on the disk before the first process.
        self._note()
        n_dask = self._start_cluster(n_workers)
        if self._settings.releases_url is None:
            self._start_page(PAGES, "release_pages", free_port(), {})
        database = self._start_database()
        variables = environment.orchestrator_environment(self._folder, port, database)
        self._start_page(ORCHESTRATOR, "orchestrator_page", port, variables)
        page = self.record.address(ORCHESTRATOR)
        self._wait(ORCHESTRATOR, lambda: web_status(f"{page}/api/health") == 200)
        client = environment.client_environment(self._folder, self.record)
        self._deploy(client)
        for pool in POOLS:
            self._start(
                f"{pool}-worker", "prefect", "worker", "start", "--pool", pool, "--name", pool,
                "--type", "process", "--limit", "1", "--install-policy", "never",
                "--no-create-pool-if-not-found", variables=client | environment.WORKER_ENVIRONMENT,
            )  # fmt: skip
        self._start(WATCHER, "flows.cli", "watch", variables=client)
        if pages := self.record.address(PAGES):
            # There is no list of the store: "not found" is the answer of a server that works.
            self._wait(PAGES, lambda: web_status(pages) == 404)
        if scheduler := self.record.address(cluster.SCHEDULER):
            self._wait_for_cluster(scheduler, n_dask)
        password = environment.page_password(self._folder)
        for pool in POOLS:
            since = self.record.part(f"{pool}-worker").created
            self._wait(f"{pool}-worker", partial(has_worker, page, password, pool, since=since))
        for part in self.record.parts:
            wait_until_answers(part, partial(is_running, part))
        self._note(ready=True)

    def _note(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        write_record(self._folder, self.record)

    def _begin(self, program: Program) -> None:
        part = start_part(program, folder=self._folder, mark=self.record.mark)
        self._note(parts=(*self.record.parts, part))

    def _start(
        self, name: str, *module: str, variables: Mapping[str, str], address: str = ""
    ) -> None:
        self._begin(
            Program(
                name=name,
                command=(sys.executable, "-m", *module),
                environment={**self._common, **variables},
                address=address,
            )
        )

    def _start_page(self, name: str, page: str, port: int, variables: Mapping[str, str]) -> None:
        self._start(
            name, "uvicorn", "--factory", f"flows.server.pages:{page}", "--host", HOST, "--port",
            str(port), "--log-level", "warning", "--no-server-header", variables=variables,
            address=f"http://{HOST}:{port}",
        )  # fmt: skip

    def _wait(self, name: str, answers: Callable[[], bool]) -> None:
        self._log(f"waiting for the {name}")
        wait_until_answers(self.record.part(name), answers)

    def _start_cluster(self, n_workers: int | None) -> int:
        """Start the Dask cluster, unless there is one; return the number of its workers."""
        if self._settings.dask_address is not None:
            return 0
        if n_workers is None:
            n_workers = max(1, min(self._settings.workers, os.cpu_count() or 1))
        gpus = cluster.find_gpus(self._log)
        address = f"tls://{HOST}:{free_port()}"
        parts = cluster.cluster_parts(
            self._folder, address, self._common, n_workers=n_workers, gpus=gpus
        )
        for part in parts:
            self._begin(part)
        return n_workers + len(gpus)

    def _wait_for_cluster(self, address: str, n_workers: int) -> None:
        """Connect as a release does, which refuses an unsafe cluster, and wait for all workers."""
        import dask

        from tasks.execution.cluster import connect

        self._wait(cluster.SCHEDULER, partial(accepts_calls, address))
        settings = dask.config.collect_yaml([str(cluster.client_config(self._folder))])
        merged = dask.config.merge(dask.config.global_config, *settings)
        with dask.config.set(merged), connect(address) as client:
            self._wait(
                cluster.CPU_WORKERS,
                lambda: len(client.scheduler_info(n_workers=-1)["workers"]) >= n_workers,
            )

    def _start_database(self) -> str:
        """Start PostgreSQL and return where it answers; empty where there is none."""
        postgres = self._postgres
        if isinstance(postgres, str):
            self._log(f"the orchestrator keeps its runs in SQLite: {postgres}")
            return ""
        password = environment.database_password(self._folder)
        mark = self.record.mark
        postgres.prepare(password, partial(run_program, folder=self._folder, mark=mark))
        address = f"{HOST}:{free_port()}"
        self._begin(postgres.program(address))
        self._wait(DATABASE, partial(accepts_passwords, address))
        postgres.open(address, password)
        return address

    def _deploy(self, client: Mapping[str, str]) -> None:
        """Register the deployments, by the command that an operator uses."""
        self._log("registering the deployments")
        program = Program(
            name="deploy",
            command=(sys.executable, "-m", "flows.cli", "deploy"),
            environment={**self._common, **client},
            directory=os.getcwd(),
        )
        if not run_program(program, folder=self._folder, mark=self.record.mark):
            log = self._folder / "deploy.log"
            lines = log.read_text("utf-8", errors="replace").strip().splitlines()
            raise ServerError(
                "SERVER_DEPLOY_FAILED",
                "expected to register the deployments, found: "
                f"{lines[-1] if lines else 'no answer'} (see {log})",
            )
