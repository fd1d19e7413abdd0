"""The deployments of an installation, as its file declares them, checked before anything is sent.

The file is a ``prefect.yaml`` that Prefect's own command reads as well. That command leaves out
what it cannot read and goes on, and a schedule that cannot run fails months later, at night. Here
a wrong file is refused as a whole.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from privacy.errors import ConfigurationError
from storage.files.documents import Record
from storage.schema.plain_yaml import read_mapping, refusal

TAG = "clustmix"
"""Marks deployments of this program on a server that others use too."""

PREFIX = "clustmix "
"""Begins the names of its automations."""

AUTOMATIONS_NAME = "automations.yaml"
"""File of the automations, beside that of the deployments."""

_Model = TypeVar("_Model", bound=BaseModel)
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
_AutomationName = Annotated[str, Field(pattern=rf"^{PREFIX}[a-z ]{{1,60}}$")]


class ScheduleSection(Record):
    """When a deployment runs by itself; the slug keeps its scheduled runs when it is sent again."""

    slug: _Name
    cron: str
    timezone: str
    active: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        from prefect.client.schemas.schedules import CronSchedule

        CronSchedule(cron=self.cron, timezone=self.timezone)
        return self


class QueueSection(Record):
    """The queue of a work pool in which the runs of a deployment wait."""

    name: _Name
    work_queue_name: _Name


class TriggerSection(Record):
    """Events that start a run, as Prefect declares them."""

    type: Literal["event"]
    name: _AutomationName
    expect: Annotated[tuple[str, ...], Field(min_length=1)]
    match: Annotated[dict[str, str], Field(min_length=1)]
    for_each: Annotated[tuple[str, ...], Field(min_length=1)]
    parameters: dict[str, Any]


class DeploymentSection(Record):
    """A flow that is served, and what starts it; a module path is the same on every machine."""

    name: _Name
    description: Annotated[str, Field(min_length=1)]
    entrypoint: Annotated[str, Field(pattern=r"^flows(\.[a-z_]+){2}$")]
    tags: tuple[Literal["clustmix"]]
    work_pool: QueueSection
    enforce_parameter_schema: Literal[True]
    parameters: dict[str, Any] = Field(default_factory=dict)
    schedules: tuple[ScheduleSection, ...] = ()
    triggers: tuple[TriggerSection, ...] = ()


class WorkPoolSection(Record):
    """Hosts that take runs of one kind; what waits in an earlier queue starts first."""

    description: Annotated[str, Field(min_length=1)]
    queues: Annotated[tuple[_Name, ...], Field(min_length=1)]


class DeploymentsFile(Record):
    """A ``prefect.yaml`` with nothing to pull; Prefect's command overlooks its work pools."""

    name: Literal["clustmix"]
    pull: Annotated[tuple[Any, ...], Field(max_length=0)]
    work_pools: Annotated[dict[_Name, WorkPoolSection], Field(min_length=1)]
    deployments: Annotated[tuple[DeploymentSection, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen = set()
        for deployment in self.deployments:
            queue = deployment.work_pool
            pool = self.work_pools.get(queue.name)
            if pool is None or queue.work_queue_name not in pool.queues:
                raise ValueError(
                    f"{deployment.name}: expected a queue of work_pools, found "
                    f"{queue.name}/{queue.work_queue_name}"
                )
            if (deployment.entrypoint, deployment.name) in seen:
                raise ValueError(f"{deployment.name}: expected each deployment once")
            seen.add((deployment.entrypoint, deployment.name))
        return self


class AutomationSection(Record):
    """What the server does when events come, or do not come; a block is given by its name."""

    name: _AutomationName
    description: Annotated[str, Field(min_length=1)]
    trigger: dict[str, Any]
    actions: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]


class AutomationsFile(Record):
    """All automations but those that start deployments."""

    automations: tuple[AutomationSection, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [automation.name for automation in self.automations]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name}: expected each automation once")
        return self


def read_deployments(path: Path) -> DeploymentsFile:
    """Read and check the file of the deployments; the ConfigurationError is one printable line."""
    return _read(DeploymentsFile, path)


def read_automations(path: Path) -> AutomationsFile:
    """Read and check the file of the automations, as `read_deployments` does."""
    return _read(AutomationsFile, path)


def _read(model: type[_Model], path: Path) -> _Model:
    if not path.is_file():
        raise refusal(
            "DEPLOYMENTS_MISSING",
            f"expected the file {path}, found none; name the prefect.yaml of the deployments, with "
            f"{AUTOMATIONS_NAME} beside it",
        )
    try:
        return model.model_validate(read_mapping(path))
    except ConfigurationError as error:
        problem = error.message
    except ValidationError as error:
        where, what = first_fault(error)
        problem = f"{path.name}: {where}: {what}".replace(": : ", ": ")
    raise refusal("DEPLOYMENTS_INVALID", problem)


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return where something was declared that is not acceptable, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
