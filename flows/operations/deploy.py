"""Tell a Prefect server what to run, when, and whom to notify: from files, as often as one likes.

The files say what holds. What they do not name any more is removed, as far as it is ours: other
deployments and automations of the server are left alone. Deployments and their triggers are
registered by Prefect's own command.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flows.events import OrchestratorError, every, orchestrator
from flows.operations.deployment_file import (
    AUTOMATIONS_NAME,
    PREFIX,
    TAG,
    AutomationSection,
    AutomationsFile,
    DeploymentSection,
    WorkPoolSection,
    first_fault,
    read_automations,
    read_deployments,
)
from flows.operations.schedules import our_deployments
from storage.schema.plain_yaml import refusal
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore
    from prefect.flows import Flow

NOTIFY_BLOCK = "clustmix-notify"
"""Block of the server that keeps the address of CLUSTMIX_NOTIFY_URL, encrypted."""

HEARTBEAT_SECONDS = 30
"""How often a run says that it is alive; the least that Prefect accepts."""

RETRIES = 5
"""How often a busy server is asked again."""

ANSWER_SECONDS = 60.0
"""How long the server may take for one answer: it is asked once, on a day of changes."""

_COMMAND_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What the server holds afterwards, by "flow/deployment"; removed was ours and in no file."""

    deployments: tuple[str, ...]
    automations: tuple[str, ...]
    removed: tuple[str, ...]
    notifies: bool


def deploy(settings: Settings, file: Path) -> Deployed:
    """Make the server hold what the files declare, and nothing else of ours.

    What somebody has paused on the server stays paused. `file` is the ``prefect.yaml``;
    ``automations.yaml`` lies beside it. It is a ConfigurationError, and nothing was sent, if a file
    is wrong or a schedule could not run, and else an OrchestratorError of the server.
    """
    declared = read_deployments(file)
    automations = read_automations(file.with_name(AUTOMATIONS_NAME))
    names = tuple(_checked(deployment, settings) for deployment in declared.deployments)
    for automation in automations.automations:
        _as_prefect(automation, {})
    with orchestrator(timeout_seconds=ANSWER_SECONDS, retries=RETRIES) as client:
        for name, pool in declared.work_pools.items():
            _put_work_pool(client, name, pool)
        paused = [deployment.id for deployment in our_deployments(client) if deployment.paused]
        _put_deployments(file)
        for deployment_id in paused:
            client.pause_deployment(deployment_id)
        removed = _remove_deployments(client, names)
        blocks = _put_notify_block(client, settings)
        kept = _put_automations(client, automations, blocks)
        removed += _remove_automations(client, kept)
    return Deployed(
        deployments=names, automations=tuple(kept), removed=tuple(removed), notifies=bool(blocks)
    )


def _checked(deployment: DeploymentSection, settings: Settings) -> str:
    """Return "flow/deployment", once its flow exists and a schedule of it could run."""
    from prefect.exceptions import ParameterTypeError

    from flows.site.request import ReleaseRequest, load_job

    flow = _flow(deployment)
    name = f"{flow.name}/{deployment.name}"
    if not deployment.schedules:
        return name
    try:
        request = flow.validate_parameters(deployment.parameters).get("request")
    except ParameterTypeError as error:
        raise refusal(
            "DEPLOYMENTS_INVALID",
            f"{name}: expected parameters with which its schedule can run, found: {error}",
        ) from None
    if isinstance(request, ReleaseRequest):
        path = request.site_path(settings.sites)
        if not path.is_file():
            raise refusal(
                "SCHEDULE_WITHOUT_SITE",
                f"{name}: expected the site file {path.name} of its dataset in the folder that "
                "CLUSTMIX_SITES names, found none; add it, or remove the schedule",
            )
        load_job(request, sites=settings.sites, requester=settings.requester)
    return name


def _flow(deployment: DeploymentSection) -> Flow[Any, Any]:
    from prefect.exceptions import MissingFlowError
    from prefect.flows import load_flow_from_entrypoint

    try:
        return load_flow_from_entrypoint(deployment.entrypoint, use_placeholder_flow=False)
    except (ImportError, AttributeError, MissingFlowError):
        pass
    raise refusal(
        "DEPLOYMENTS_INVALID",
        f"{deployment.name}: expected a flow at {deployment.entrypoint}, found none; correct the "
        "entrypoint",
    )


def _put_work_pool(client: SyncPrefectClient, name: str, pool: WorkPoolSection) -> None:
    """Make a pool of processes in which every run has the settings that keep values off disks."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["env"]["default"] = {
        **safe_environment(),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    }
    content = {"description": pool.description, "base_job_template": template}
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", **content))
    except ObjectAlreadyExists:
        # Not overwritten as a whole: a pool that somebody has paused stays so.
        client.update_work_pool(name, WorkPoolUpdate(**content))
    known = {queue.name: queue for queue in client.read_work_queues(work_pool_name=name)}
    for priority, queue in enumerate(pool.queues, start=1):
        if queue not in known:
            client.create_work_queue(name=queue, priority=priority, work_pool_name=name)
        elif known[queue].priority != priority:
            client.update_work_queue(known[queue].id, priority=priority)


def _put_deployments(file: Path) -> None:
    """Let Prefect's own command register every deployment with its schedules and triggers."""
    place = file.resolve()
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    problem = ""
    try:
        done = subprocess.run(  # noqa: S603 -- this interpreter, and a file that was checked
            [*command, "--prefect-file", str(place)],
            cwd=place.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no reason").splitlines()
            problem = said[-1]
    except subprocess.TimeoutExpired:
        problem = f"no end within {_COMMAND_SECONDS} seconds"
    if problem:
        line = refusal("", f"expected prefect deploy to register {file.name}, found: {problem}")
        raise OrchestratorError("DEPLOY_FAILED", line.message)


def _remove_deployments(client: SyncPrefectClient, names: tuple[str, ...]) -> list[str]:
    removed = []
    for deployment in our_deployments(client):
        name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
        if name not in names:
            # The server would leave them, and each event would try to start what is gone.
            client.delete_resource_owned_automations(f"prefect.deployment.{deployment.id}")
            client.delete_deployment(deployment.id)
            removed.append(name)
    return removed


def _put_notify_block(client: SyncPrefectClient, settings: Settings) -> dict[str, UUID]:
    """Keep the address to notify on the server; without one, keep none there either."""
    from prefect.blocks.webhook import Webhook
    from prefect.exceptions import ObjectNotFound

    if settings.notify_url is not None:
        block = Webhook(url=settings.notify_url, headers={"content-type": "application/json"})
        return {NOTIFY_BLOCK: cast("UUID", block.save(NOTIFY_BLOCK, overwrite=True))}
    try:
        found = client.read_block_document_by_name(NOTIFY_BLOCK, "webhook")
    except ObjectNotFound:
        return {}
    client.delete_block_document(found.id)
    return {}


def _put_automations(
    client: SyncPrefectClient, declared: AutomationsFile, blocks: dict[str, UUID]
) -> list[str]:
    """Create what is missing and change what differs; what nobody could be told of is left out."""
    found = {automation.name: automation for automation in _our_automations(client)}
    kept = []
    for section in declared.automations:
        needed = {str(a["block_document_id"]) for a in section.actions if "block_document_id" in a}
        if not needed <= blocks.keys():
            continue
        wanted = _as_prefect(section, blocks)
        known = found.get(section.name)
        if known is None:
            client.create_automation(wanted)
        elif _content(known) != _content(wanted):
            client.update_automation(known.id, wanted.model_copy(update={"enabled": known.enabled}))
        kept.append(section.name)
    return kept


def _remove_automations(client: SyncPrefectClient, kept: list[str]) -> list[str]:
    """Remove ours that no file names, and starters of deployments that are gone, but no others."""
    deployments = {deployment.id for deployment in our_deployments(client)}
    removed = []
    for automation in _our_automations(client):
        starts = {getattr(action, "deployment_id", None) for action in automation.actions} - {None}
        if (starts and not starts & deployments) or (not starts and automation.name not in kept):
            client.delete_automation(automation.id)
            removed.append(automation.name)
    return removed


def _our_automations(client: SyncPrefectClient) -> list[Automation]:
    found = every(client.read_automations)
    return [automation for automation in found if automation.name.startswith(PREFIX)]


def _as_prefect(section: AutomationSection, blocks: dict[str, UUID]) -> AutomationCore:
    """Return an automation as the server takes it, with blocks by identifier."""
    from uuid import UUID

    from prefect.events.schemas.automations import AutomationCore
    from pydantic import ValidationError

    actions = []
    for action in section.actions:
        block = action.get("block_document_id")
        named = {} if block is None else {"block_document_id": blocks.get(block, UUID(int=0))}
        actions.append({**action, **named})
    try:
        return AutomationCore(
            name=section.name,
            description=section.description,
            tags=[TAG],
            trigger=section.trigger,
            actions=actions,
        )
    except ValidationError as error:
        where, what = first_fault(error)
    raise refusal("DEPLOYMENTS_INVALID", f"{AUTOMATIONS_NAME}: {section.name}: {where}: {what}")


def _content(automation: AutomationCore) -> dict[str, Any]:
    """Return what the file says of an automation, without what the server or a person adds."""
    content = automation.model_dump(mode="json", exclude={"id", "enabled"})
    content["trigger"].pop("id", None)
    return content
