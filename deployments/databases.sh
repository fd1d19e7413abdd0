#!/bin/sh
# Runs once, when the volume of the database is empty. It makes two databases that share only the
# server. Prefect's role cannot enter the ledger. The pipeline's role only reads and appends; the
# journal itself is made by the role that owns it (service "ledger").
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
  --set prefect_password="$PREFECT_DB_PASSWORD" \
  --set owner_password="$LEDGER_OWNER_PASSWORD" \
  --set pipeline_password="$LEDGER_PASSWORD" <<'SQL'
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE ledger_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE pipeline LOGIN PASSWORD :'pipeline_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE ledger OWNER ledger_owner;
REVOKE ALL ON DATABASE prefect, ledger FROM PUBLIC;
GRANT CONNECT ON DATABASE ledger TO pipeline;
\connect prefect
CREATE EXTENSION pg_trgm;
\connect ledger
ALTER DEFAULT PRIVILEGES FOR ROLE ledger_owner GRANT USAGE ON SCHEMAS TO pipeline;
ALTER DEFAULT PRIVILEGES FOR ROLE ledger_owner GRANT SELECT, INSERT ON TABLES TO pipeline;
SQL
