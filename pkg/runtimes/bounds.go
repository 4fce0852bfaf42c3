package runtimes

import (
	"fmt"
	"strings"

	"github.com/containerd/nri/pkg/api"
)

// MostBytes bounds the NRI message about a pod or a container. A runtime tells a plugin that
// registers of all pods and containers, and divides them among messages of 4 MiB, but no
// further than to eight of them: if those take more, it starts without the plugin.
const MostBytes = 480 << 10

// CheckPod returns an error if a pod is too long for plugins to be told of it.
func CheckPod(pod *api.PodSandbox) error {
	if size := pod.SizeVT(); size > MostBytes {
		return fmt.Errorf("its labels and annotations take %d KiB, and with more than %d KiB plugins of the container runtime may not be told of it: make them smaller", size>>10, MostBytes>>10)
	}
	return nil
}

// CheckContainer returns an error if a container is too long for plugins to be told of it.
func CheckContainer(container *api.Container) error {
	if size := container.SizeVT(); size > MostBytes {
		return fmt.Errorf("its environment, arguments and mounts take %d KiB, and with more than %d KiB plugins of the container runtime may not be told of it: mount files instead of long variables", size>>10, MostBytes>>10)
	}
	return nil
}

// mostText bounds the text of an error that a runtime is answered with, in bytes.
// Kubelet shows it in an Event, which has room for about as much.
const mostText = 1024

// Brief returns an error without the middle of its text if that is long. Texts quote what
// tenants wrote, and a plugin whose answer is longer than a message of the runtime's may be
// sends none, and gets no further question.
func Brief(err error) error {
	text := err.Error()
	if len(text) <= mostText {
		return err
	}
	const mark, end = " … ", mostText / 4
	begin := mostText - len(mark) - end
	return &briefError{strings.ToValidUTF8(text[:begin], "") + mark + strings.ToValidUTF8(text[len(text)-end:], ""), err}
}

// briefError is an error with another text.
type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }

func (e *briefError) Unwrap() error { return e.err }
