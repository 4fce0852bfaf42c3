package guard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// askingVersion is of the file's format.
const askingVersion = 1

// ErrAsking says that the list of asking pods cannot be trusted.
var ErrAsking = errors.New("the list of pods that ask for GPUs is corrupt")

// asking is the content of the file that lists the node's pods that ask for
// GPUs. It outlives a reboot, after which kubelet starts the same pods.
type asking struct {
	Version int `json:"version"`
	// SHA256 is of the UIDs, each with a newline.
	SHA256 string `json:"sha256"`
	// Pods are UIDs as the runtime has them.
	Pods []string `json:"pods"`
}

func (a asking) checksum() string {
	hash := sha256.New()
	for _, uid := range a.Pods {
		fmt.Fprintln(hash, uid)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// WriteAsking replaces the list of the pods that ask for GPUs, durably.
func WriteAsking(stateDir string, uids []string) error {
	a := asking{Version: askingVersion, Pods: slices.Sorted(slices.Values(uids))}
	a.SHA256 = a.checksum()
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode the list of pods that ask for GPUs: %w", err)
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return fmt.Errorf("make the state directory (paths.state_dir): %w", err)
	}
	path := layout.AskingPods(stateDir)
	// In the directory itself: another file system could not be renamed from.
	err = renameio.WriteFile(path, append(data, '\n'), 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(stateDir))
	if err != nil {
		return fmt.Errorf("write the list of pods that ask for GPUs (paths.state_dir): %w", err)
	}
	return nil
}

// ReadAsking gives the pods that ask for GPUs, by the runtime's UID.
func ReadAsking(stateDir string) ([]string, error) {
	return readAsking(layout.AskingPods(stateDir))
}

// RemoveAsking removes the list.
func RemoveAsking(stateDir string) error {
	if err := os.Remove(layout.AskingPods(stateDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the list of pods that ask for GPUs: %w", err)
	}
	return nil
}

func readAsking(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of pods that ask for GPUs: %w", err)
	}
	var a asking
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrAsking, err)
	}
	// A newer agent may write more: to take a pod for one that asks is safe.
	if a.Version < askingVersion || a.SHA256 != a.checksum() {
		return nil, fmt.Errorf("%s: %w: version %d, or a wrong checksum", path, ErrAsking, a.Version)
	}
	return a.Pods, nil
}

// asks tells whether a pod is known to ask for GPUs: the agent has listed it,
// or has given a container of it something since the node booted.
func (g *Guard) asks(s Settings, podUID string) bool {
	// A list that cannot be read is the one read before, or none: what is not
	// on it gets no GPU all the same.
	uids, _ := g.asking.get(layout.AskingPods(s.StateDir), readAsking)
	if slices.Contains(uids, podUID) {
		return true
	}
	if podUID == "" || podUID != filepath.Base(podUID) {
		return false
	}
	_, err := os.Stat(filepath.Join(layout.Containers(s.RunDir), podUID))
	return err == nil
}
