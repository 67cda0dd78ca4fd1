-- The terms of chunks and in how many chunks each occurs: written with the chunks, and right at any
-- time. What rag.term_counts does not have yet (new chunks) or no longer should (deleted ones, by
-- whomever) is found by an index and added when a search asks, so that nothing has to be repaired.

create or replace function rag.list_dims(p_terms public.sparsevec)
    returns table (dim integer)
    language sql
    immutable
    parallel safe
begin atomic
    select split_part(e.entry, ':', 1)::integer as dim
    from string_to_table(trim(split_part(p_terms::text, '/', 1), '{}'), ',') as e (entry)
    where e.entry <> '';
end;

comment on function rag.list_dims(public.sparsevec) is
'The dimensions at which a sparse vector is not 0.';

create or replace function rag.store_terms(p_chunk_ids bigint[])
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
begin
    if exists (select 1 from rag.chunk_terms as t where t.id = any(p_chunk_ids)) then
        -- made anew: what they had is taken out of the counts like that of deleted chunks
        perform rag.count_terms();
        update rag.chunk_terms as t
        set id = -t.id, chunk_id = null
        where t.id = any(p_chunk_ids);
    end if;
    insert into rag.chunk_terms as t (id, chunk_id, scope, owner, terms)
    select
        c.id, c.id, coalesce(c.scope, d.scope, d.vault_path), c.owner,
        rag.weigh_chunk(c.content, c.heading_path, c.relative_path, c.tags, c.frontmatter)
    from rag.chunks as c
    join rag.documents as d on d.id = c.document_id
    where c.id = any(p_chunk_ids)
    order by c.id;
    insert into rag.uncounted_terms as u (id)
    select t.id from rag.chunk_terms as t where t.id = any(p_chunk_ids);
end;
$$;

comment on function rag.store_terms(bigint[]) is
'Makes and stores the terms of these chunks, anew where they have some; the caller sets has_terms.';

create or replace function rag.fill_terms(p_limit integer default 1000)
    returns integer
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_ids bigint[];
begin
    select coalesce(array_agg(c.id), '{}') into v_ids
    from (
        select n.id
        from rag.chunks as n
        where not n.has_terms
        order by n.id
        limit p_limit
        for update skip locked
    ) as c;
    perform rag.store_terms(v_ids);
    update rag.chunks as c set has_terms = true where c.id = any(v_ids);
    perform rag.count_terms();
    return cardinality(v_ids);
end;
$$;

comment on function rag.fill_terms(integer) is
'Makes the terms of up to p_limit chunks that have none, such as those inserted by hand, and returns
how many; 0 when all have theirs. `rag db init` repeats it to the end. To make terms anew, such as
after a move to another major version of Postgres, whose stems may differ:
update rag.chunks set has_terms = false; and then rag db init.';

create or replace function rag.recount_terms()
    returns bigint
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('rag.count_terms', 0));
    delete from rag.term_counts;
    delete from rag.uncounted_terms;
    delete from rag.chunk_terms as t where t.chunk_id is null;
    insert into rag.uncounted_terms (id) select t.id from rag.chunk_terms as t;
    return rag.count_terms();
end;
$$;

comment on function rag.recount_terms() is
'Counts all terms again from rag.chunk_terms and returns how many different ones there are: a repair
for what rag.find_inconsistencies() says about counts, as after a truncate of rag.documents.';

create or replace function rag.count_terms()
    returns bigint
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
    set enable_mergejoin = off
as $$
declare
    v_changed bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('rag.count_terms', 0));
    -- one statement, one view of the tables: a chunk is new, gone, both or neither in all parts of it
    with
    taken as (delete from rag.uncounted_terms as u returning u.id),
    gone as (
        delete from rag.chunk_terms as t where t.chunk_id is null returning t.id, t.scope, t.terms
    ),
    changes as (
        select t.scope, t.terms, 1 as step
        from rag.chunk_terms as t
        join taken as n on n.id = t.id
        where t.chunk_id is not null
        union all
        select g.scope, g.terms, -1
        from gone as g
        where not exists (select 1 from taken as n where n.id = g.id)
    )
    insert into rag.term_counts as k (dim, scope, chunks)
    select d.dim, c.scope, sum(c.step)
    from changes as c
    cross join lateral (
        select l.dim from rag.list_dims(c.terms) as l
        union all
        select 0
    ) as d
    group by d.dim, c.scope
    having sum(c.step) <> 0
    on conflict (dim, scope) do update set chunks = k.chunks + excluded.chunks;
    get diagnostics v_changed = row_count;
    delete from rag.term_counts as k where k.chunks <= 0;
    return v_changed;
end;
$$;

comment on function rag.count_terms() is
'Brings rag.term_counts up to date with the chunks that came and went, and forgets what is left of
deleted ones; returns how many counts changed. Searches are right without it, and quicker after it.
Runs of ingestion call it as they go and at their end; after deleting by hand call it yourself.';

create or replace function rag.count_terms_if_many()
    returns void
    language plpgsql
    set search_path = pg_catalog, public, pg_temp
as $$
begin
    if (
        select count(*) >= 10000 from (select 1 from rag.uncounted_terms as u limit 10000) as n
    ) then
        perform rag.count_terms();
    end if;
end;
$$;

comment on function rag.count_terms_if_many() is
'rag.count_terms() once ten thousand chunks are not counted, so that searches in a long run stay
quick.';

create or replace function rag.unstored_terms(p_filter jsonb default '{}')
    returns table (chunk_id bigint, terms public.sparsevec, passes boolean)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
as $$
begin
    return query
    select
        c.id,
        rag.weigh_chunk(c.content, c.heading_path, c.relative_path, c.tags, c.frontmatter),
        p_filter - 'vault' = '{}'
        or c.id = any(array(select f.chunk_id from rag.filtered_chunks(p_filter) as f))
    from rag.chunks as c
    join rag.documents as d on d.id = c.document_id
    where not c.has_terms
        and not exists (select 1 from rag.chunk_terms as t where t.id = c.id)
        and (
            p_filter ->> 'vault' is null
            or coalesce(c.scope, d.scope, d.vault_path) = rtrim(p_filter ->> 'vault', '/')
        );
end;
$$;

comment on function rag.unstored_terms(jsonb) is
'Chunks that have no row in rag.chunk_terms, such as those inserted by hand, with terms made on the
spot; of the filter''s vault if it names one. passes: whether the rest of the filter lets it through.
Mostly none.';

create or replace function rag.term_statistics(p_dims integer[], p_vault text default null)
    returns table (dim integer, chunks bigint)
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    with
    asked as materialized (
        select d.dim, rag.sparse_vector(array[d.dim], '{1}') as unit
        from unnest(p_dims) as d (dim)
    ),
    pending as materialized (
        select t.terms, 1 as step
        from rag.uncounted_terms as u
        join rag.chunk_terms as t on t.id = u.id
        where t.chunk_id is not null and (p_vault is null or t.scope = p_vault)
        union all
        select t.terms, -1
        from rag.chunk_terms as t
        where t.chunk_id is null
            and (p_vault is null or t.scope = p_vault)
            and not exists (select 1 from rag.uncounted_terms as u where u.id = t.id)
        union all
        select n.terms, 1
        from rag.unstored_terms(
            case when p_vault is null then '{}' else jsonb_build_object('vault', p_vault) end
        ) as n
    )
    select
        a.dim,
        (
            coalesce((
                select sum(k.chunks)
                from rag.term_counts as k
                where k.dim = a.dim and (p_vault is null or k.scope = p_vault)
            ), 0)
            + coalesce((
                select sum(p.step)
                from pending as p
                where a.dim = 0 or (p.terms <#> a.unit) < 0
            ), 0)
        )::bigint
    from asked as a;
end;
$$;

comment on function rag.term_statistics(integer[], text) is
'In how many chunks each of these dimensions occurs (0: how many chunks there are), of one vault or
of all that the caller may see; exact, counted, stored or not.
Example: select s.* from rag.term_statistics(array[0, rag.term_dim(''数据'')]) as s;';
