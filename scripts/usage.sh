# For scripts: `source usage.sh` and `arguments MOST "$@"` at their beginning.

# Prints the comment at the head of the script that runs.
usage() {
    awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
}

# Shows the usage where -h or --help is among the arguments $2 and on, and refuses other options, and more than $1
# arguments.
arguments() {
    local most=$1 argument
    shift
    for argument in "$@"; do
        case $argument in
        -h | --help)
            usage
            exit
            ;;
        -*)
            echo "${0##*/}: there is no option $argument; --help says what there is" >&2
            exit 2
            ;;
        esac
    done
    if [ $# -gt "$most" ]; then
        echo "${0##*/}: expected at most $most arguments, found $#; --help says which" >&2
        exit 2
    fi
}
