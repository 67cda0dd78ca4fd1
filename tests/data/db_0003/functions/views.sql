-- Views for people in psql. No function reads one.

create or replace view rag.run_log as
select
    r.id as run_id,
    r.vault_path,
    r.started_at,
    r.status as run_status,
    i.relative_path,
    i.action,
    i.status,
    i.reason,
    i.moved_from,
    i.chunks_written,
    i.embeddings_written,
    i.embeddings_reused,
    i.error,
    i.updated_at
from rag.ingest_runs as r
inner join rag.ingest_run_items as i on r.id = i.run_id
where i.action <> 'skip' or i.status <> 'done';

comment on view rag.run_log is
'Everything that runs did or could not do, document by document; unchanged files are left out.
Example: select relative_path, action, reason, error from rag.run_log where run_id = 3;';
comment on column rag.run_log.run_id is 'Number of the run.';
comment on column rag.run_log.vault_path is 'The vault of the run.';
comment on column rag.run_log.started_at is 'When the run began.';
comment on column rag.run_log.run_status is 'running, success or failed.';
comment on column rag.run_log.relative_path is 'Path below the vault; a folder ends in /.';
comment on column rag.run_log.action is 'add, change, move, delete, skip or embed.';
comment on column rag.run_log.status is 'pending (planned, or withheld), done or failed.';
comment on column rag.run_log.reason is 'Why this action was planned.';
comment on column rag.run_log.moved_from is 'Former path of a moved file.';
comment on column rag.run_log.chunks_written is 'Chunks stored for this document.';
comment on column rag.run_log.embeddings_written is 'Embeddings computed for it.';
comment on column rag.run_log.embeddings_reused is 'Embeddings kept for it.';
comment on column rag.run_log.error is 'What went wrong with this file.';
comment on column rag.run_log.updated_at is 'When this was last written.';
