// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// askingVersion is the version of the file's format.
const askingVersion = 1

// ErrAsking means that the list of asking pods is corrupt.
var ErrAsking = errors.New("the list of pods that request GPUs is corrupt")

// asking is the content of the file that lists the node's pods that request GPUs. After a reboot,
// the file still exists, and kubelet starts the listed pods again.
type asking struct {
	Version int `json:"version"`
	// SHA256 is the checksum of the UIDs, each with a newline.
	SHA256 string `json:"sha256"`
	// Pods are the UIDs as the runtime reports them.
	Pods []string `json:"pods"`
	// Names are the pods' namespaces and names, as "namespace/name", in the order of Pods.
	// NamesSHA256 is the checksum of Names. The previous release neither writes nor reads names.
	Names       []string `json:"names,omitempty"`
	NamesSHA256 string   `json:"namesSHA256,omitempty"`
}

// Pod is a pod as the runtime names it. A pod without a name matches any pod with the UID.
type Pod struct{ UID, Namespace, Name string }

// Compare orders pods.
func (p Pod) Compare(o Pod) int {
	return cmp.Or(cmp.Compare(p.UID, o.UID), cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name))
}

// Is reports whether a listed pod is the pod o. A listed pod without a name matches by its UID
// alone. UIDs of static pods are hashes that any creator of a pod could claim, but no pod can take
// another pod's name.
func (p Pod) Is(o Pod) bool {
	return p == o || p == Pod{UID: o.UID}
}

func checksum(lines []string) string {
	hash := sha256.New()
	for _, line := range lines {
		fmt.Fprintln(hash, line)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func newAsking(pods []Pod) asking {
	a := asking{Version: askingVersion}
	for _, p := range slices.SortedFunc(slices.Values(pods), Pod.Compare) {
		name := ""
		if p.Name != "" {
			name = p.Namespace + "/" + p.Name
		}
		a.Pods, a.Names = append(a.Pods, p.UID), append(a.Names, name)
	}
	a.SHA256, a.NamesSHA256 = checksum(a.Pods), checksum(a.Names)
	return a
}

// pods returns the listed pods, and whether the list is valid. A newer agent may write additional
// fields. The guard ignores additional fields, which can only make the guard refuse more pods.
func (a asking) pods() (pods []Pod, ok bool) {
	named := a.NamesSHA256 != "" || len(a.Names) > 0
	if a.Version < askingVersion || a.SHA256 != checksum(a.Pods) ||
		named && (len(a.Names) != len(a.Pods) || a.NamesSHA256 != checksum(a.Names)) {
		return nil, false
	}
	for i, uid := range a.Pods {
		p := Pod{UID: uid}
		if named {
			p.Namespace, p.Name, _ = strings.Cut(a.Names[i], "/")
		}
		pods = append(pods, p)
	}
	return pods, true
}

// WriteAsking replaces the list of the pods that request GPUs, durably.
func WriteAsking(stateDir string, pods []Pod) error {
	data, err := json.Marshal(newAsking(pods))
	if err != nil {
		return fmt.Errorf("encode the list of pods that request GPUs: %w", err)
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return fmt.Errorf("make the state directory (paths.state_dir): %w", err)
	}
	path := paths.AskingPods(stateDir)
	// The temporary file is in the directory of the list, because rename does not cross file
	// systems.
	err = renameio.WriteFile(path, append(data, '\n'), 0o600, renameio.IgnoreUmask(), renameio.WithTempDir(stateDir))
	if err != nil {
		return fmt.Errorf("write the list of pods that request GPUs (paths.state_dir): %w", err)
	}
	return nil
}

// ReadAsking returns the pods that request GPUs, sorted.
func ReadAsking(stateDir string) ([]Pod, error) {
	return ReadAskingFile(paths.AskingPods(stateDir))
}

// ReadAskingFile returns the pods that a list contains.
func ReadAskingFile(path string) ([]Pod, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of pods that request GPUs: %w", err)
	}
	var a asking
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrAsking, err)
	}
	pods, ok := a.pods()
	if !ok {
		return nil, fmt.Errorf("%s: %w: version %d, or a wrong checksum", path, ErrAsking, a.Version)
	}
	return pods, nil
}
