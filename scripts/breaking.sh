#!/bin/sh
# Compares the contract with the last release tag. Usage: breaking.sh BUF
buf=${1:-buf}
tag=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)
if [ -z "$tag" ]; then
    echo "buf breaking: there is no release to compare with yet"
    exit 0
fi
exec "$buf" breaking --against ".git#tag=$tag"
