-- What a run has to do with each file of a vault, and why.

create or replace function rag.plan_ingest(
    p_vault_path text, p_files jsonb, p_provider text, p_model text, p_dim integer
)
    returns table (
        relative_path text,
        action text,
        reason text,
        moved_from text,
        old_hash text,
        new_hash text,
        error text
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    manifest as (
        select
            f.path,
            f.hash,
            f.error
        from jsonb_to_recordset(p_files) as f (path text, hash text, error text)
    ),
    known as (
        select
            d.id,
            d.relative_path as path,
            d.content_hash as hash
        from rag.documents as d
        where d.vault_path = p_vault_path
    ),
    -- a document is gone when its file is; not when a folder above it could not be read
    gone as (
        select
            k.path,
            k.hash,
            row_number() over (partition by k.hash order by k.path collate "C") as nth
        from known as k
        where
            not exists (select 1 from manifest as m where m.path = k.path)
            and not exists (
                select 1 from manifest as m
                where m.error is not null and right(m.path, 1) = '/' and starts_with(k.path, m.path)
            )
    ),
    fresh as (
        select
            m.path,
            m.hash,
            row_number() over (partition by m.hash order by m.path collate "C") as nth
        from manifest as m
        where m.error is null and not exists (select 1 from known as k where k.path = m.path)
    ),
    incomplete as (
        select distinct c.document_id
        from known as k
        inner join rag.chunks as c on k.id = c.document_id
        left join rag.embeddings as e
            on
                c.id = e.chunk_id
                and e.embedding_provider = p_provider
                and e.embedding_model = p_model
                and e.embedding_dim = p_dim
        where e.id is null
    ),
    planned as (
        select
            m.path,
            case
                when right(m.path, 1) = '/' then 'skip'
                when k.path is null and g.path is not null then 'move'
                when k.path is null then 'add'
                when m.error is not null or k.hash <> m.hash then 'change'
                when i.document_id is not null then 'embed'
                else 'skip'
            end as action,
            g.path as moved_from,
            coalesce(k.hash, g.hash) as old_hash,
            m.hash as new_hash,
            m.error
        from manifest as m
        left join known as k on m.path = k.path
        left join fresh as f on m.path = f.path
        left join gone as g on f.hash = g.hash and f.nth = g.nth
        left join incomplete as i on k.id = i.document_id
        union all
        select
            g.path,
            'delete',
            null,
            g.hash,
            null,
            null
        from gone as g
        where not exists (select 1 from fresh as f where f.hash = g.hash and f.nth = g.nth)
    )
    select
        p.path as relative_path,
        p.action,
        case
            when p.error is not null then 'it cannot be read'
            when p.action = 'add' then 'new file'
            when p.action = 'move' then 'same content as the vanished ' || p.moved_from
            when p.action = 'change' then 'content changed'
            when p.action = 'embed' then format('not embedded by %s %s', p_provider, p_model)
            when p.action = 'skip' then 'unchanged'
            else 'file is gone'
        end as reason,
        p.moved_from,
        p.old_hash,
        p.new_hash,
        p.error
    from planned as p
    order by p.action = 'delete', p.path collate "C";
end;

comment on function rag.plan_ingest(text, jsonb, text, text, integer) is
'What a run would do with each file of a vault, and why; writes nothing. p_files is a JSON array of
{"path", "hash", "size", "mtime"}, or {"path", "error"} for what could not be read (a folder ends
in /). Actions: add, change, move (same hash as a file that vanished), embed (only embeddings of
this configuration are missing), skip, and last delete. Nothing below an unreadable folder is
deleted.
Example: select * from rag.plan_ingest(''/vault'', ''[{"path": "a.md", "hash": "…"}]'', ''fake'',
    ''fake-lexical-v1'', 1024);';

create or replace function rag.why_withheld(p_deletions bigint, p_documents bigint, p_files bigint)
    returns text
    language sql
    immutable
    parallel safe
return case
    when p_deletions = 0 then null
    when p_files = 0 then 'no file was found at all'
    when p_deletions > 5 and p_deletions > 0.3 * p_documents
        then format('%s of %s documents would vanish', p_deletions, p_documents)
end;

comment on function rag.why_withheld(bigint, bigint, bigint) is
'Why deletions are withheld: no file was found at all, or more than 5 and more than 30 % of the
documents would vanish (an unmounted share more often than a clean-up). Null when they may be done.
Example: select rag.why_withheld(6, 10, 4);';

create or replace function rag.preview_ingest(
    p_vault_path text,
    p_files jsonb,
    p_provider text,
    p_model text,
    p_dim integer,
    p_allow_mass_delete boolean default false
)
    returns table (
        relative_path text,
        action text,
        reason text,
        moved_from text,
        old_hash text,
        new_hash text,
        error text
    )
    language sql
    stable
    parallel safe
begin atomic
    with
    plan as (
        select p.*
        from rag.plan_ingest(p_vault_path, p_files, p_provider, p_model, p_dim) as p
    ),
    guard as (
        select
            rag.why_withheld(
                count(*) filter (where p.action = 'delete'),
                (
                    select count(*) from rag.documents as d
                    where d.vault_path = p_vault_path
                ),
                count(*) filter (where p.action <> 'delete' and right(p.relative_path, 1) <> '/')
            ) as why
        from plan as p
    )
    select
        p.relative_path,
        p.action,
        case
            when
                p.action = 'delete' and g.why is not null
                and not coalesce(p_allow_mass_delete, false)
                then 'withheld: ' || g.why
            else p.reason
        end as reason,
        p.moved_from,
        p.old_hash,
        p.new_hash,
        p.error
    from plan as p
    cross join guard as g
    order by p.action = 'delete', p.relative_path collate "C";
end;

comment on function rag.preview_ingest(text, jsonb, text, text, integer, boolean) is
'What a run would do now: rag.plan_ingest, with the reason of deletions that would be withheld
(withheld: …). Writes nothing. Arguments as for rag.plan_ingest, and whether mass deletion is
allowed.';

create or replace function rag.withhold_deletions(p_run_id bigint)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_run rag.ingest_runs := rag.running_run(p_run_id);
    v_documents bigint;
    v_deletions bigint;
    v_files bigint;
    v_why text;
begin
    select count(*) into v_documents
    from rag.documents as d
    where d.vault_path = v_run.vault_path and d.created_at <= v_run.started_at;
    select
        count(*) filter (where i.action = 'delete'),
        count(*) filter (where i.action <> 'delete' and right(i.relative_path, 1) <> '/')
    into v_deletions, v_files
    from rag.ingest_run_items as i
    where i.run_id = p_run_id;
    v_why := rag.why_withheld(v_deletions, v_documents, v_files);
    if v_why is null then
        return false;
    end if;
    update rag.ingest_run_items as i
    set reason = 'withheld: ' || v_why
    where i.run_id = p_run_id and i.action = 'delete' and i.status = 'pending';
    return true;
end;
$$;

comment on function rag.withhold_deletions(bigint) is
'Withholds the deletions of a run (reason withheld: …) where rag.why_withheld gives a reason;
returns whether it did. Raises RG005.';

create or replace function rag.record_plan(
    p_run_id bigint, p_files jsonb, p_allow_mass_delete boolean default false
)
    returns table (
        relative_path text,
        action text,
        reason text,
        moved_from text,
        old_hash text,
        new_hash text,
        error text
    )
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_run rag.ingest_runs := rag.running_run(p_run_id);
begin
    insert into rag.ingest_run_items as i (
        run_id, relative_path, action, status, reason, moved_from, old_hash, new_hash, error
    )
    select
        p_run_id, p.relative_path, p.action,
        case
            when p.error is not null then 'failed'
            when p.action = 'skip' then 'done'
            else 'pending'
        end,
        p.reason, p.moved_from, p.old_hash, p.new_hash, p.error
    from rag.plan_ingest(
        v_run.vault_path, p_files,
        v_run.embedding_provider, v_run.embedding_model, v_run.embedding_dim
    ) as p;

    update rag.ingest_runs as r
    set documents_skipped = n.skipped, documents_failed = n.failed
    from (
        select
            count(*) filter (where i.status = 'done') as skipped,
            count(*) filter (where i.status = 'failed') as failed
        from rag.ingest_run_items as i
        where i.run_id = p_run_id
    ) as n
    where r.id = p_run_id;

    if not coalesce(p_allow_mass_delete, false) then
        perform rag.withhold_deletions(p_run_id);
    end if;

    return query
    select
        i.relative_path, i.action, i.reason, i.moved_from, i.old_hash, i.new_hash, i.error
    from rag.ingest_run_items as i
    where i.run_id = p_run_id and i.status <> 'done'
    order by i.id;
end;
$$;

comment on function rag.record_plan(bigint, jsonb, boolean) is
'Plans a run (see rag.plan_ingest), stores one item a path and returns those that are not
unchanged, in the order to do them. Deletions are withheld (reason withheld: …) when no file was
found at all, or when more than 5 and more than 30 % of the documents would vanish, unless
p_allow_mass_delete. Raises RG005.';
