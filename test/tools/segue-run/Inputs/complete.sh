# Prints what bash offers for the last of the words given behind the program that the script in $1 is for, one a line in the order of the alphabet.
# As where a user types, the sign in --option=value is a word of its own.
source "$1"
program=$(sed -n 's/^complete -F [^ ]* //p' "$1")
shift
COMP_WORDS=("$program" "$@")
COMP_CWORD=$#
"_${program//-/_}"
((${#COMPREPLY[@]})) && printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort
exit 0
