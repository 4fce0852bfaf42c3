// SPDX-License-Identifier: Apache-2.0

// Package store keeps the files of containers: the assignment and the limits and usage
// pages. The package validates every file that it reads, and renames files that are
// corrupt or belong to another container.
package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/usagefs"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	assignmentFile = paths.Assignment
	// reservationFile holds the assignments of all containers of a pod.
	reservationFile   = "assignments.json"
	assignmentVersion = 1
	maxAssignmentSize = 1 << 20
)

// ErrVersion means that an assignment file has the format of a newer release.
var ErrVersion = errors.New("assignment has the format of a newer release")

// These errors are the other reasons to reject an assignment file.
var (
	errAssignmentCorrupt = errors.New("assignment is corrupt")
	errAssignmentForeign = errors.New("assignment belongs to another container")
	// errAssignmentBusy means that a process has a lease on the file. A container with whole GPUs has
	// the file mounted, and an open would wait for root in the container.
	errAssignmentBusy = errors.New("a lease keeps the assignment from being read")
)

// pathElement matches the pod UIDs and container names that are valid as the name of a
// directory.
var pathElement = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$`)

// Store is the directory of the containers' files:
//
//	<pod UID>/<container>/{assignment.json,limits,usage}
//	<pod UID>/assignments.json
type Store struct {
	dir string
	// Usage, if set, provides the file systems of the usage pages. Without Usage, the usage pages
	// are files beside the limits pages, and tenants can fill the file system of dir.
	Usage *usagefs.Mounts
	// ContextBytes, if set, returns the size of a CUDA context on a GPU, for the
	// containers' limits pages. ContextBytes returns 0 if the size is unknown, and must
	// not wait.
	ContextBytes func(uuid string) uint64
}

// New returns a Store, and creates the Store's directory if it is missing.
func New(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the containers' directory (paths.run_dir): %w", err)
	}
	return &Store{dir: dir}, nil
}

// MountUsage places each container's usage page on a separate file system below dir, which has room
// only for the page.
func (s *Store) MountUsage(dir string) {
	s.Usage = usagefs.New(dir, limits.UsageFile, limits.UsageBytes)
}

// Dir returns the directory of a container's files. Dir returns an error if a name is not
// valid as the name of a directory.
func (s *Store) Dir(podUID, container string) (string, error) {
	for _, element := range []string{podUID, container} {
		if len(element) > 255 || !pathElement.MatchString(element) {
			return "", fmt.Errorf("%q cannot be the name of a directory", element)
		}
	}
	return filepath.Join(s.dir, podUID, container), nil
}

// Save writes a container's assignment, new pages with its limits, and an ld.so.preload with the
// interposer and then the libraries in preload. Call Save for each
// new instance of a container: the pages of the previous instance stay with the processes
// that still map them. If Save fails, the previous pages remain.
func (s *Store) Save(a placement.Allocation, gpus []gpu.GPU, preload []string) error {
	dir, err := s.Dir(a.PodUID, a.Container)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the container's directory: %w", err)
	}
	if err := writePreload(dir, preload); err != nil {
		return err
	}
	if err := writeAssignment(filepath.Join(dir, assignmentFile), a); err != nil {
		return err
	}
	return s.writePages(dir, a, s.PageDevices(a, gpus))
}

func (s *Store) writePages(dir string, a placement.Allocation, devices []limits.Device) error {
	if s.Usage == nil {
		return limits.Create(dir, devices)
	}
	usage, err := s.Usage.Make(a.PodUID, a.Container)
	if err != nil {
		return err
	}
	defer usage.Close()
	if err := limits.CreateApart(dir, usage, devices); err != nil {
		return errors.Join(err, s.Usage.Discard(usage))
	}
	return s.Usage.Keep(a.PodUID, a.Container, usage)
}

// SaveWhole writes the assignment of a container without limits, and removes the pages of
// an earlier instance.
func (s *Store) SaveWhole(a placement.Allocation) error {
	dir, err := s.Dir(a.PodUID, a.Container)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the container's directory: %w", err)
	}
	for _, page := range []string{limits.LimitsFile, limits.UsageFile} {
		if err := os.Remove(filepath.Join(dir, page)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old page: %w", err)
		}
	}
	if s.Usage != nil {
		if err := s.Usage.Remove(a.PodUID, a.Container); err != nil {
			return err
		}
	}
	return writeAssignment(filepath.Join(dir, assignmentFile), a)
}

// Reserve persists the assignments of all containers of a pod, including containers that do not
// exist yet. Reserve writes all assignments or none, in one file. A container's own file takes
// precedence.
func (s *Store) Reserve(podUID string, all []placement.Allocation) error {
	dir, err := s.podDir(podUID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	return writeAssignment(filepath.Join(dir, reservationFile), all)
}

// Reserved reports whether a pod has the file that Reserve writes.
func (s *Store) Reserved(podUID string) bool {
	dir, err := s.podDir(podUID)
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, reservationFile))
	return err == nil
}

func (s *Store) podDir(podUID string) (string, error) {
	if len(podUID) > 255 || !pathElement.MatchString(podUID) {
		return "", fmt.Errorf("%q cannot be the name of a directory", podUID)
	}
	return filepath.Join(s.dir, podUID), nil
}

// Rewrite writes a container's assignment and does not touch its pages.
func (s *Store) Rewrite(a placement.Allocation) error {
	dir, err := s.Dir(a.PodUID, a.Container)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the container's directory: %w", err)
	}
	return writeAssignment(filepath.Join(dir, assignmentFile), a)
}

// Limits returns the limits on a container's limits page. The error wraps fs.ErrNotExist if the
// container has no page.
func (s *Store) Limits(podUID, container string) ([]limits.Device, error) {
	dir, err := s.Dir(podUID, container)
	if err != nil {
		return nil, err
	}
	return limits.Read(filepath.Join(dir, limits.LimitsFile))
}

// UpdateLimits replaces the limits on a container's limits page, for its running processes too. A page
// with the same sizes stays as it is. UpdateLimits keeps the sizes of contexts on the page.
func (s *Store) UpdateLimits(a placement.Allocation, gpus []gpu.GPU) error {
	dir, err := s.Dir(a.PodUID, a.Container)
	if err != nil {
		return err
	}
	now, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		return err
	}
	next := s.PageDevices(a, gpus)
	if len(now) == len(next) {
		for i := range next {
			next[i].ContextBytes = now[i].ContextBytes
		}
	}
	if slices.Equal(now, next) {
		return nil
	}
	return limits.Update(dir, next)
}

// Used returns the memory in bytes that a container uses of each of its GPUs. The use is the larger of
// the usage page's claims and the limits page's observations.
func (s *Store) Used(podUID, container string) ([]uint64, error) {
	dir, err := s.Dir(podUID, container)
	if err != nil {
		return nil, err
	}
	used, err := limits.Observed(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		return nil, err
	}
	// While a page is read, bytes may move from pending to used, and be missed. The second look finds them
	// among the used bytes.
	for range 2 {
		claims, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile))
		if err != nil {
			return nil, err
		}
		for i := range min(len(used), len(claims.Devices)) {
			used[i] = max(used[i], claims.Devices[i].UsedBytes+claims.Devices[i].PendingBytes)
		}
	}
	return used, nil
}

// PageDevices returns the limits of an allocation in the form of the limits page.
func (s *Store) PageDevices(a placement.Allocation, gpus []gpu.GPU) []limits.Device {
	page := make([]limits.Device, len(a.Devices))
	for i, d := range a.Devices {
		page[i] = limits.Device{UUID: d.UUID, MemoryBytes: d.Limit(), ComputePPM: d.ComputePPM, MaximumPPM: d.MaximumPPM, MPS: d.MPS,
			ContextBytes: s.contextBytes(d.UUID)}
		if d.MPS {
			page[i].Multiprocessors = multiprocessors(gpus, d.UUID)
		}
		if d.ComputePPM == 0 {
			page[i].ComputePPM = limits.NoComputeLimit
		}
	}
	return page
}

func (s *Store) contextBytes(uuid string) uint64 {
	if s.ContextBytes == nil {
		return 0
	}
	return s.ContextBytes(uuid)
}

func multiprocessors(gpus []gpu.GPU, uuid string) int {
	if k := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == uuid }); k >= 0 {
		return gpus[k].Multiprocessors
	}
	return 0
}

// writePreload writes a container's ld.so.preload. An unchanged file stays, because a tenant can keep
// each file open that its container had.
func writePreload(dir string, libraries []string) error {
	path, content := filepath.Join(dir, paths.Preload), paths.PreloadContent(libraries...)
	if have, err := leased.Read(path, int64(len(content))+1); err == nil && bytes.Equal(have, content) {
		return nil
	}
	err := renameio.WriteFile(path, content, 0o644, renameio.IgnoreUmask())
	if err != nil {
		return fmt.Errorf("write the container's ld.so.preload: %w", err)
	}
	return nil
}

// envelope is the content of assignment.json and assignments.json.
type envelope struct {
	Version int `json:"version"`
	// SHA256 is the checksum of Allocation's bytes.
	SHA256 string `json:"sha256"`
	// Allocation is an allocation or a list of allocations.
	Allocation json.RawMessage `json:"allocation"`
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// writeAssignment writes an allocation or a list of allocations.
func writeAssignment(path string, given any) error {
	allocation, err := json.Marshal(given)
	if err != nil {
		return fmt.Errorf("encode assignment: %w", err)
	}
	data, err := json.Marshal(envelope{assignmentVersion, checksum(allocation), allocation})
	if err != nil {
		return fmt.Errorf("encode assignment: %w", err)
	}
	err = renameio.WriteFile(path, data, 0o600, renameio.IgnoreUmask())
	if err != nil {
		return fmt.Errorf("write assignment: %w", err)
	}
	return nil
}

// Assignment returns the assignment in a container's own file.
func (s *Store) Assignment(podUID, container string) (placement.Allocation, error) {
	dir, err := s.Dir(podUID, container)
	if err != nil {
		return placement.Allocation{}, err
	}
	return readAssignment(filepath.Join(dir, assignmentFile))
}

func readAssignment(path string) (placement.Allocation, error) {
	var a placement.Allocation
	return a, readEnvelope(path, &a)
}

// readEnvelope reads a file that writeAssignment wrote.
func readEnvelope(path string, given any) error {
	data, err := leased.Read(path, maxAssignmentSize+1)
	if errors.Is(err, leased.Err) {
		return fmt.Errorf("%w: %w", errAssignmentBusy, err)
	}
	if err != nil {
		return fmt.Errorf("read assignment: %w", err)
	}
	if len(data) > maxAssignmentSize {
		return fmt.Errorf("%w: more than %d bytes long", errAssignmentCorrupt, maxAssignmentSize)
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%w: %w", errAssignmentCorrupt, err)
	}
	if e.Version > assignmentVersion {
		return fmt.Errorf("%w: format %d, and this agent reads %d", ErrVersion, e.Version, assignmentVersion)
	}
	if e.Version != assignmentVersion {
		return fmt.Errorf("%w: format %d", errAssignmentCorrupt, e.Version)
	}
	if checksum(e.Allocation) != e.SHA256 {
		return fmt.Errorf("%w: wrong checksum", errAssignmentCorrupt)
	}
	if err := json.Unmarshal(e.Allocation, given); err != nil {
		return fmt.Errorf("%w: %w", errAssignmentCorrupt, err)
	}
	return nil
}

// Load returns every valid assignment, and for each other file an error that names the file. Load does
// not touch files of a newer release and files with a lease, and renames invalid files. The runtime
// reports the assignments of running containers, too.
func (s *Store) Load() ([]placement.Allocation, []error) {
	var errs []error
	given := map[string]placement.Allocation{} // by the container's directory
	// The patterns are constant, and Glob fails only for a bad pattern. The containers' files come
	// last, since a container's file takes precedence over its pod's file.
	pods, _ := filepath.Glob(filepath.Join(s.dir, "*", reservationFile))
	containers, _ := filepath.Glob(filepath.Join(s.dir, "*", "*", assignmentFile))
	for _, path := range append(pods, containers...) {
		all, err := s.read(path)
		if errors.Is(err, ErrVersion) || errors.Is(err, errAssignmentBusy) {
			errs = append(errs, fmt.Errorf("kept %s, which this agent cannot read: %w", path, err))
			continue
		}
		if err != nil {
			errs = append(errs, s.putAside(path, err))
		}
		for _, a := range all {
			given[filepath.Join(s.dir, a.PodUID, a.Container)] = a
		}
	}
	allocations := slices.Collect(maps.Values(given))
	slices.SortFunc(allocations, func(a, b placement.Allocation) int {
		return strings.Compare(a.PodUID+"/"+a.Container, b.PodUID+"/"+b.Container)
	})
	return allocations, errs
}

// read reads a file of a container or of a pod. If any part of the file is invalid, read returns an
// error and no allocation.
func (s *Store) read(path string) ([]placement.Allocation, error) {
	var all []placement.Allocation
	own := filepath.Base(path) == assignmentFile
	if own {
		a, err := readAssignment(path)
		if err != nil {
			return nil, err
		}
		all = []placement.Allocation{a}
	} else if err := readEnvelope(path, &all); err != nil {
		return nil, err
	}
	for _, a := range all {
		dir, err := s.Dir(a.PodUID, a.Container)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errAssignmentCorrupt, err)
		}
		if !own {
			dir = filepath.Dir(dir)
		}
		if dir != filepath.Dir(path) {
			return nil, fmt.Errorf("%w: the file belongs to %s", errAssignmentForeign, dir)
		}
	}
	return all, nil
}

func (s *Store) putAside(path string, why error) error {
	aside := path + ".bad-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("failed to rename %s, which is invalid: %w", path, errors.Join(why, err))
	}
	return fmt.Errorf("renamed %s, which is invalid, to %s: %w", path, filepath.Base(aside), why)
}

// Pods returns the UIDs of the pods that have files or remains of usage pages.
func (s *Store) Pods() ([]string, error) {
	var uids []string
	for _, dir := range s.dirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list the containers' files: %w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && pathElement.MatchString(entry.Name()) {
				uids = append(uids, entry.Name())
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// HasFiles reports whether Pods would return a pod.
func (s *Store) HasFiles(podUID string) bool {
	return pathElement.MatchString(podUID) && slices.ContainsFunc(s.dirs(), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, podUID))
		return err == nil
	})
}

// dirs returns the directories with a subdirectory for each pod.
func (s *Store) dirs() []string {
	if s.Usage == nil {
		return []string{s.dir}
	}
	return []string{s.dir, s.Usage.Dir}
}

// Remove removes the files of a pod's containers.
func (s *Store) Remove(podUID string) error {
	if !pathElement.MatchString(podUID) {
		return fmt.Errorf("%q cannot be the name of a directory", podUID)
	}
	if s.Usage != nil {
		if err := s.Usage.Remove(podUID); err != nil {
			return err
		}
	}
	err := os.RemoveAll(filepath.Join(s.dir, podUID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the pod's files: %w", err)
	}
	return nil
}
