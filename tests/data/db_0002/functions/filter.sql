-- Filters of a search: what is allowed in one, and which chunks pass it.

create or replace function rag.check_filter(p_filter jsonb)
    returns jsonb
    language plpgsql
    stable
    parallel safe
    set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_key text;
    v_value jsonb;
    v_hint constant text := 'Example: {"vault": "/srv/notes", "path_prefix": "runbooks",'
        ' "tags": {"any": ["p1"], "all": ["ops"]}, "updated_after": "2026-01-31T00:00:00Z"}';
begin
    if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
        raise exception 'filter must be a JSON object, got %', coalesce(p_filter::text, 'null')
            using errcode = 'RG001', hint = 'Use ''{}'' for no filter.';
    end if;
    for v_key, v_value in select e.key, e.value from jsonb_each(p_filter) as e order by e.key loop
        if v_key in ('vault', 'path_prefix', 'updated_after') then
            if jsonb_typeof(v_value) <> 'string' or trim(p_filter ->> v_key, ' /') = '' then
                raise exception 'filter.% must be a text that is not empty, got %', v_key, v_value
                    using errcode = 'RG001', hint = v_hint;
            end if;
        elsif v_key <> 'tags' then
            raise exception 'filter has an unknown key: %', v_key
                using errcode = 'RG001', hint = v_hint;
        elsif jsonb_typeof(v_value) <> 'object' or v_value = '{}' or exists (
            select 1
            from jsonb_each(v_value) as t
            where t.key not in ('any', 'all')
                or jsonb_typeof(t.value) <> 'array'
                or t.value = '[]'
                or exists (
                    select 1 from jsonb_array_elements(t.value) as w (tag)
                    where jsonb_typeof(w.tag) <> 'string' or trim(w.tag #>> '{}', ' #/') = ''
                )
        ) then
            raise exception 'filter.tags must hold a list of tags under any or all, got %', v_value
                using errcode = 'RG001', hint = v_hint;
        end if;
    end loop;
    if p_filter ? 'updated_after' then
        -- without a zone the answer would depend on the session
        if p_filter ->> 'updated_after' !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)$' then
            raise exception 'filter.updated_after must be a time with a zone, got %',
                p_filter -> 'updated_after'
                using errcode = 'RG001', hint = v_hint;
        end if;
        perform (p_filter ->> 'updated_after')::timestamptz;
    end if;
    return p_filter;
end;
$$;

comment on function rag.check_filter(jsonb) is
'The same filter where it is a JSON object of vault, path_prefix, tags (any, all) and updated_after,
all optional. Raises RG001 otherwise, and for a time that does not exist 22008.
Example: select rag.check_filter(''{"path_prefix": "runbooks", "tags": {"any": ["p1"]}}'');';

create or replace function rag.filter_tags(p_filter jsonb, p_which text)
    returns text[]
    language sql
    immutable
    parallel safe
begin atomic
    select array_agg(trim(normalize(w.tag, nfc), ' #/'))
    from jsonb_array_elements_text(p_filter -> 'tags' -> p_which) as w (tag);
end;

comment on function rag.filter_tags(jsonb, text) is
'The tags of a filter under any or all, without # and slashes at the ends; null where it has none.';

create or replace function rag.filter_path(p_filter jsonb)
    returns text
    language sql
    immutable
    parallel safe
return trim(regexp_replace(normalize(p_filter ->> 'path_prefix', nfc), '^(\./)+', ''), '/');

comment on function rag.filter_path(jsonb) is
'The path_prefix of a filter as paths are stored: NFC, without ./ and slashes at the ends; null
where it has none.';

create or replace function rag.filtered_chunks(p_filter jsonb)
    returns table (chunk_id bigint)
    language sql
    stable
    parallel safe
begin atomic
    select c.id as chunk_id
    from rag.chunks as c
    inner join rag.documents as d on c.document_id = d.id
    where
        (p_filter ->> 'vault' is null or d.vault_path = rtrim(p_filter ->> 'vault', '/'))
        and (
            p_filter ->> 'path_prefix' is null
            or c.relative_path = rag.filter_path(p_filter)
            or starts_with(c.relative_path, rag.filter_path(p_filter) || '/')
        )
        and (
            p_filter ->> 'updated_after' is null
            or d.updated_at > (p_filter ->> 'updated_after')::timestamptz
        )
        and (
            p_filter #> '{tags,any}' is null
            or exists (
                select 1
                from unnest(c.tags) as t (tag)
                cross join unnest(rag.filter_tags(p_filter, 'any')) as w (tag)
                where
                    lower(t.tag) = lower(w.tag)
                    or starts_with(lower(t.tag), lower(w.tag) || '/')
            )
        )
        and (
            p_filter #> '{tags,all}' is null
            or not exists (
                select 1
                from unnest(rag.filter_tags(p_filter, 'all')) as w (tag)
                where not exists (
                    select 1
                    from unnest(c.tags) as t (tag)
                    where
                        lower(t.tag) = lower(w.tag)
                        or starts_with(lower(t.tag), lower(w.tag) || '/')
                )
            )
        );
end;

comment on function rag.filtered_chunks(jsonb) is
'The chunks that pass a filter (see rag.check_filter), inlined where it is used. vault: the vault''s
path; path_prefix: a folder or file below it, literal, at slash borders; tags any, all: without #,
upper and lower case alike, a tag takes in those below it (a: a/b); updated_after: stored or moved
after this time.';
