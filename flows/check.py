"""Check of a table against its declaration, before any charge."""

from __future__ import annotations

from dataclasses import replace

from flows.installation import Workplace
from privacy.errors import InputError
from tasks.ingest.findings import summary_of, tally
from tasks.ingest.pieces import tallied_cells
from tasks.steps import ingest_steps, source
from tasks.steps.entries import CHECK_FAILED, CHECK_PASSED, Entries
from tasks.steps.job import ReleaseJob
from tasks.steps.source import Tables


def check_table(job: ReleaseJob, *, entries: Entries, tables: Tables, workplace: Workplace) -> None:
    """Check a table against its declared rules; return only if it keeps them all.

    In either case the restricted file of the job begins with a summary of the cells. The caller has
    cleaned up after dead runs. A check is an entry of the ledger that is voided at once; it records
    the time, the requester, and the digest of the declarations.

    Raises
    ------
    BudgetRefused
        If no release of these declarations could be paid for any more.
    InputError
        If the source cannot be read, or breaks a rule, which the restricted file names.

    Privacy
    -------
    Reads private rows. The answer is internal: it is not differentially private, and nothing that
    is published depends on it but the number of checks with other declarations.
    """
    reader = tables.reader(job.source, job.events)
    source.check_source(job.columns_to_read, job.table_schema, reader, job.events)
    diagnostics = workplace.diagnostics_of(job.ref.release_id)
    with (
        workplace.workspace(job.ref.release_id) as workspace,
        workplace.executor(workspace, table_bytes=reader.size_bytes()) as executor,
    ):
        key, table = tables.key(reader, executor, **job.identity)
        entry = entries.reserve(job.charge(key, owner=entries.owner), new_draw=True).entry
        rules, refusal = replace(job.rules, tally=tally), None
        with entries.closing(entry), entries.reading(entry) as register:
            try:
                try:
                    ingest_steps.ingest(
                        job.columns_to_read,
                        rules,
                        reader,
                        workspace=workspace,
                        diagnostics=diagnostics,
                        executor=executor,
                        register=register,  # which keeps nothing of a check
                    )
                except InputError as error:
                    refusal = error
                code = CHECK_PASSED if refusal is None else CHECK_FAILED
                entries.end_check(entry, job.declarations, table, code=code)
            except BaseException:
                diagnostics.remove()  # no findings of a check that the ledger does not record
                raise
        if refusal is not None:
            diagnostics.add("", refusal.message, (), ())
        counted = tallied_cells(workspace.folder)
        diagnostics.begin_with(summary_of(counted, rules.row_schema, job.unit.column, job.events))
        if refusal is not None:
            raise InputError(
                CHECK_FAILED,
                f"the table of {job.ref.dataset} does not pass; what it breaks is in "
                f"{diagnostics.pointer} (restricted; folder diagnostics of CLUSTMIX_HOME). Correct "
                "the source, or declare what clustmix check --show proposes, where the codebook "
                "agrees; nothing is charged",
            )
