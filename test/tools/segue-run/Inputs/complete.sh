# Prints what bash offers for the last of the words of a command line, by the script in $1, one a line in the order of the alphabet.
# As where a user types, the sign in --option=value is a word of its own.
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"_${1//-/_}"
((${#COMPREPLY[@]})) && printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort
exit 0
