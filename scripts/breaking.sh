#!/bin/sh
# Compares the contract with that of the last release. Usage: breaking.sh BUF
exec "${1:-buf}" breaking proto --against released/contract.binpb.gz
