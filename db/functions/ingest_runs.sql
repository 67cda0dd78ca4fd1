-- Runs of `rag ingest`: begin, close, and the lock that shows that the process of a run lives.
--
--   begin_run → record_plan → replace_document | add_embeddings | fail_item | retract_item
--   → delete_documents → finish_run            (fail_run when the run itself breaks)

create or replace function rag.run_lock_key(p_run_id bigint)
    returns bigint
    language sql
    immutable
    parallel safe
return hashtextextended('rag.run:' || p_run_id, 0);

comment on function rag.run_lock_key(bigint) is
'Key of the advisory lock that the process of a run holds on its connection for as long as it
lives.';

create or replace function rag.run_is_alive(p_run_id bigint)
    returns boolean
    language sql
    stable
    parallel safe
begin atomic
    select count(*) > 0
    from pg_catalog.pg_locks as l
    where
        l.locktype = 'advisory'
        and l.granted
        and l.objsubid = 1
        and l.database = (
            select d.oid from pg_catalog.pg_database as d
            where d.datname = current_database()
        )
        and l.classid = ((rag.run_lock_key(p_run_id) >> 32) & 4294967295)::oid
        and l.objid = (rag.run_lock_key(p_run_id) & 4294967295)::oid;
end;

comment on function rag.run_is_alive(bigint) is
'True while some session holds the lock of this run, that is, while its process is connected.';

create or replace function rag.close_dead_runs(p_vault_path text default null)
    returns integer
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_closed integer;
begin
    update rag.ingest_runs as r
    set status = 'failed', finished_at = clock_timestamp(), error_summary = 'interrupted'
    where r.status = 'running'
        and (p_vault_path is null or r.vault_path = p_vault_path)
        and not rag.run_is_alive(r.id);
    get diagnostics v_closed = row_count;
    return v_closed;
end;
$$;

comment on function rag.close_dead_runs(text) is
'Marks runs whose process is gone as failed with error_summary interrupted; of one vault, or of
all. Returns how many. What such a run had stored stays.';

create or replace function rag.check_not_busy(p_vault_path text)
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_other rag.ingest_runs;
begin
    perform pg_advisory_xact_lock(hashtextextended('rag.vault:' || p_vault_path, 0));
    select r.* into v_other
    from rag.ingest_runs as r
    where r.status = 'running' and r.vault_path = p_vault_path and rag.run_is_alive(r.id)
    limit 1;
    if found then
        raise exception 'run % of % is at work (process % on %, since %)', v_other.id, p_vault_path,
            coalesce(v_other.metadata ->> 'pid', '?'), coalesce(v_other.metadata ->> 'host', '?'),
            to_char(v_other.started_at, 'YYYY-MM-DD HH24:MI:SS TZ')
            using errcode = 'RG006', hint = 'Wait until it ends, or stop that process.';
    end if;
end;
$$;

comment on function rag.check_not_busy(text) is
'Takes the lock of a vault until the end of the transaction. Raises RG006 when a run of it is alive,
saying who holds it and since when.';

create or replace function rag.begin_run(
    p_vault_path text, p_provider text, p_model text, p_dim integer, p_metadata jsonb default '{}'
)
    returns bigint
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_run_id bigint;
begin
    perform rag.check_dim(p_dim);
    perform rag.check_not_busy(p_vault_path);
    perform rag.close_dead_runs();
    insert into rag.ingest_runs as r (
        vault_path, embedding_provider, embedding_model, embedding_dim, status, metadata
    )
    values (p_vault_path, p_provider, p_model, p_dim, 'running', p_metadata)
    returning r.id into v_run_id;
    perform pg_advisory_lock(rag.run_lock_key(v_run_id));
    return v_run_id;
end;
$$;

comment on function rag.begin_run(text, text, text, integer, jsonb) is
'Starts a run of a vault and returns its number. The run belongs to this database session: it
counts as interrupted once the session is gone. Runs of dead sessions are closed first. Raises
RG004 (dimension), RG006 when another run of the same vault is alive.';

create or replace function rag.running_run(p_run_id bigint)
    returns rag.ingest_runs
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_run rag.ingest_runs;
begin
    select r.* into v_run
    from rag.ingest_runs as r
    where r.id = p_run_id and r.status = 'running'
    for update;
    if not found then
        raise exception 'there is no running run %', coalesce(p_run_id::text, 'null')
            using errcode = 'RG005', hint = 'Runs are listed in rag.ingest_runs.';
    end if;
    return v_run;
end;
$$;

comment on function rag.running_run(bigint) is
'The row of a running run, locked until the end of the transaction. Raises RG005 when there is
none.';

create or replace function rag.end_run(p_run_id bigint, p_status text, p_error_summary text)
    returns setof rag.ingest_runs
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    perform rag.running_run(p_run_id);
    perform set_config('synchronous_commit', 'on', true);
    perform rag.fill_terms();  -- chunks inserted by hand; counts those of this run too
    perform pg_advisory_unlock(rag.run_lock_key(p_run_id)) where rag.run_is_alive(p_run_id);
    return query
    update rag.ingest_runs as r
    set status = p_status, error_summary = p_error_summary, finished_at = clock_timestamp()
    where r.id = p_run_id
    returning r.*;
end;
$$;

comment on function rag.end_run(bigint, text, text) is
'Closes a run and returns its row; the terms of its chunks are counted, and all that it stored is on
disk then, also from a session with synchronous_commit = off. A part of rag.finish_run and rag.fail_run. Raises RG005.';

create or replace function rag.finish_run(p_run_id bigint)
    returns setof rag.ingest_runs
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_summary text;
begin
    select concat_ws('; ',
        case when count(*) filter (where i.status = 'failed') > 0 then
            format('%s failed: ', count(*) filter (where i.status = 'failed'))
            || string_agg(i.relative_path, ', ' order by i.id)
            filter (where i.status = 'failed')
        end,
        case when count(*) filter (where i.action = 'delete' and i.status = 'pending') > 0 then
            format('%s deletions withheld',
                count(*) filter (where i.action = 'delete' and i.status = 'pending'))
        end,
        case when count(*) filter (where i.action <> 'delete' and i.status = 'pending') > 0 then
            format('%s left undone',
                count(*) filter (where i.action <> 'delete' and i.status = 'pending'))
        end
    ) into v_summary
    from rag.ingest_run_items as i
    where i.run_id = p_run_id;
    return query
    select r.*
    from rag.end_run(
        p_run_id, case when v_summary = '' then 'success' else 'failed' end, nullif(v_summary, '')
    ) as r;
end;
$$;

comment on function rag.finish_run(bigint) is
'Closes a run that did all it could and returns its row: success only if no file failed, no
deletion was withheld and nothing was left undone. Raises RG005.';

create or replace function rag.fail_run(p_run_id bigint, p_error_summary text)
    returns setof rag.ingest_runs
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    return query select r.* from rag.end_run(p_run_id, 'failed', left(p_error_summary, 2000)) as r;
end;
$$;

comment on function rag.fail_run(bigint, text) is
'Closes a run that broke, and returns its row. What it stored stays. Raises RG005.';

create or replace function rag.list_open_items(p_run_id bigint)
    returns table (relative_path text, action text, status text, reason text, error text)
    language sql
    stable
    parallel safe
begin atomic
    select
        i.relative_path,
        i.action,
        i.status,
        i.reason,
        i.error
    from rag.ingest_run_items as i
    where i.run_id = p_run_id and i.status <> 'done'
    order by i.id;
end;

comment on function rag.list_open_items(bigint) is
'What a run did not do: files that failed (error says why) and withheld deletions (reason).';
