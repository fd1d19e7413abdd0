"""Registration of deployments with a Prefect server, from files and as often as one likes.

``prefect deploy --all`` registers the deployments. This module checks the files before, and adds
what that command leaves out: work pools, automations, and the removal of what no file names any
more. Deployments and automations that are not ours are left alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import SecretStr

from flows.events import OrchestratorError, every, orchestrator
from flows.supervisor import run_module
from flows.watching.budgets import read_sites
from flows.watching.schedules import TAG, full_name, our_deployments
from privacy.errors import ClustMixError
from storage.schema.plain_yaml import read_mapping, refusal
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

NOTIFY_BLOCK = "clustmix-notify"
"""Block of the server that keeps the address of CLUSTMIX_NOTIFY_URL, encrypted."""

PREFIX = "clustmix "
"""Begins the names of our automations."""

_AUTOMATIONS = "automations.yaml"
_HEARTBEAT_SECONDS = 30  # the least that Prefect accepts
# Generous, since deployment is rare.
_ANSWER_SECONDS, _RETRIES, _COMMAND_SECONDS = 60.0, 5, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Deployments ("flow/deployment") and automations of the server; `removed` are in no file."""

    deployments: tuple[str, ...]
    automations: tuple[str, ...]
    removed: tuple[str, ...]
    notifies: bool


def deploy(settings: Settings, file: Path) -> Deployed:
    """Register a ``prefect.yaml``, the ``automations.yaml`` beside it, and schedules of site files.

    A deployment or an automation that somebody has paused stays paused. It is a ConfigurationError,
    and nothing was sent, if a file is wrong or a schedule could not run; else an OrchestratorError.
    """
    for path in (file, file.with_name(_AUTOMATIONS)):
        if not path.is_file():
            raise refusal(
                "DEPLOYMENTS_MISSING",
                f"expected the file {path}, found none; name the prefect.yaml of the deployments, "
                f"with {_AUTOMATIONS} beside it",
            )
    declared = read_mapping(file)
    automations: Any = read_mapping(file.with_name(_AUTOMATIONS)).get("automations")
    problem = ""
    try:
        declared["deployments"] += _scheduled(settings.sites)
        names = {
            _checked(one, settings.sites, settings.requester) for one in declared["deployments"]
        }
        pools = dict(declared["work_pools"])
        for section in automations:
            _automation(section, None)
    except ClustMixError:
        raise
    except Exception as error:  # of a flow that is not there, or a file of another form
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise refusal(
            "DEPLOYMENTS_INVALID",
            f"expected deployments in {file.name} and automations in {_AUTOMATIONS} as Prefect "
            f"takes them, found {problem}",
        )
    with orchestrator(timeout_seconds=_ANSWER_SECONDS, retries=_RETRIES) as client:
        _put_work_pools(client, pools)
        paused = [deployment.id for deployment in our_deployments(client) if deployment.paused]
        _prefect_deploy(declared)
        for deployment_id in paused:
            client.pause_deployment(deployment_id)
        found = {full_name(client, each): each.id for each in our_deployments(client)}
        if unread := names - found.keys():
            raise _failure(f"that Prefect leaves out {', '.join(sorted(unread))} of {file.name}")
        removed = sorted(found.keys() - names)
        for name in removed:
            # The server would keep its triggers, which try to start the deleted deployment.
            client.delete_resource_owned_automations(f"prefect.deployment.{found[name]}")
            client.delete_deployment(found[name])
        block = _put_notify_block(client, settings.notify_url)
        if block is None:
            automations = [section for section in automations if not _notifies(section)]
        removed += _put_automations(client, [_automation(each, block) for each in automations])
    return Deployed(
        deployments=tuple(sorted(names)),
        automations=tuple(section["name"] for section in automations),
        removed=tuple(removed),
        notifies=block is not None,
    )


def _checked(deployment: Mapping[str, Any], sites: Path, requester: str | None) -> str:
    """Return "flow/deployment", once its flow exists and a schedule of it could run."""
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.flows import load_flow_from_entrypoint

    from flows.site.request import ReleaseRequest, load_job

    flow: Any = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    name = f"{flow.name}/{deployment['name']}"
    if deployment["tags"] != [TAG] or deployment["enforce_parameter_schema"] is not True:
        raise ValueError(f"{name} without tags: [{TAG}] or enforce_parameter_schema: true")
    for schedule in deployment.get("schedules", ()):
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        request = flow.validate_parameters(deployment.get("parameters", {})).get("request")
        if not isinstance(request, ReleaseRequest):
            continue
        path = request.site_path(sites)
        if not path.is_file():
            raise refusal(
                "SCHEDULE_WITHOUT_SITE",
                f"{name}: expected the site file {path.name} of its dataset in the folder that "
                "CLUSTMIX_SITES names, found none; add it, or remove the schedule",
            )
        load_job(request, sites=sites, requester=requester)
    return name


def _scheduled(sites: Path) -> list[dict[str, Any]]:
    """Return the deployments of site files with a schedule."""
    found, faults = read_sites(sites)
    if faults:  # whose schedule would be removed
        named = ", ".join(f"{name} ({code})" for name, code in faults.items())
        raise refusal(
            "SITE_UNUSABLE", f"expected site files, found {named}; correct or remove them"
        )
    return [
        {
            "name": f"scheduled-{dataset}",
            "description": "Measures the dataset by the schedule of its site file.",
            "entrypoint": "flows.measure.measure_cohort",
            "tags": [TAG],
            "work_pool": {"name": "private", "work_queue_name": "schedule"},
            "enforce_parameter_schema": True,
            "parameters": {"request": {"dataset": dataset}},
            "schedules": [{"slug": "site-file", **site.schedule.model_dump()}],
        }
        for dataset, site in found.items()
        if site.schedule is not None
    ]


def _put_work_pools(client: SyncPrefectClient, pools: Mapping[str, Any]) -> None:
    """Make pools of processes in which every run has the settings that keep values off disks."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["env"]["default"] = {
        **safe_environment(),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(_HEARTBEAT_SECONDS),
    }
    for name, pool in pools.items():
        content = {"description": pool["description"], "base_job_template": template}
        try:
            client.create_work_pool(WorkPoolCreate(name=name, type="process", **content))
        except ObjectAlreadyExists:
            # Not overwritten as a whole: a pool that somebody has paused stays so.
            client.update_work_pool(name, WorkPoolUpdate(**content))
        known = {queue.name for queue in client.read_work_queues(work_pool_name=name)}
        for priority, queue in enumerate(pool["queues"], start=1):
            if queue not in known:
                client.create_work_queue(name=queue, priority=priority, work_pool_name=name)


def _prefect_deploy(declared: Mapping[str, Any]) -> None:
    """Let Prefect's own command register every deployment with its schedules and triggers."""
    command = ("prefect", "--no-prompt", "deploy", "--all")
    try:
        with TemporaryDirectory() as folder:
            Path(folder, "prefect.yaml").write_text(json.dumps(declared))
            code, said = run_module(*command, cwd=folder, timeout=_COMMAND_SECONDS)
        problem = ["no reason", *said][-1] if code else ""
    except subprocess.TimeoutExpired:
        problem = f"no end within {_COMMAND_SECONDS} seconds"
    if problem:
        raise _failure(problem)


def _failure(problem: str) -> OrchestratorError:
    line = refusal("", f"expected prefect deploy to register the deployments, found {problem}")
    return OrchestratorError("DEPLOY_FAILED", line.message)


def _put_notify_block(client: SyncPrefectClient, url: SecretStr | None) -> UUID | None:
    """Store the address for notifications on the server; without one, delete the stored one."""
    from prefect.blocks.webhook import Webhook
    from prefect.exceptions import ObjectNotFound

    if url is not None:
        block = Webhook(url=url, headers={"content-type": "application/json"})
        return UUID(str(block.save(NOTIFY_BLOCK, overwrite=True)))
    with suppress(ObjectNotFound):
        found = client.read_block_document_by_name(NOTIFY_BLOCK, "webhook")
        client.delete_block_document(found.id)
    return None


def _put_automations(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> list[str]:
    """Create or change automations, and remove others of ours; return their names."""
    found = {one.name: one for one in every(client.read_automations) if one.name.startswith(PREFIX)}
    for automation in wanted:
        known = found.pop(automation.name, None)
        if known is None:
            client.create_automation(automation)
        # Only if it differs, since an update resets the counts of the server.
        elif _content(known) != _content(automation):
            enabled = {"enabled": known.enabled}
            client.update_automation(known.id, automation.model_copy(update=enabled))
    for name, known in [*found.items()]:
        if any(hasattr(action, "deployment_id") for action in known.actions):
            del found[name]  # a trigger of a deployment, which is the deployment's
        else:
            client.delete_automation(known.id)
    return [*found]


def _automation(section: Mapping[str, Any], block: UUID | None) -> AutomationCore:
    """Return an automation as Prefect takes it, with the block by its identifier."""
    from prefect.events.schemas.automations import AutomationCore

    if not section["name"].startswith(PREFIX):
        raise ValueError(f"automation {section['name']}, whose name does not begin with {PREFIX}")
    named = {"block_document_id": block or UUID(int=0)}
    actions = [a | named if "block_document_id" in a else a for a in section["actions"]]
    return AutomationCore.model_validate({**section, "tags": [TAG], "actions": actions})


def _notifies(section: Mapping[str, Any]) -> bool:
    return any("block_document_id" in action for action in section["actions"])


def _content(automation: AutomationCore) -> dict[str, Any]:
    """Return the content that the file declares, without additions of the server or a person."""
    content = automation.model_dump(mode="json", exclude={"id", "enabled"})
    content["trigger"].pop("id", None)
    return content
