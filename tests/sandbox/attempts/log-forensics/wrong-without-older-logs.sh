#!/bin/bash
# The compressed log is left out.
sed 's/zcat access.log.2.gz; //' /solution/solve.sh | bash
