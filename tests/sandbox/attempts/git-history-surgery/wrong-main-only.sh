#!/bin/bash
# The other branches and the tags still lead to the password.
sed 's/ -- --all$/ -- main/' /solution/solve.sh | bash
