// SPDX-License-Identifier: Apache-2.0

package oracle

// NVMLUser is a process that has initialised NVML, whether it uses CUDA or not.
type NVMLUser struct {
	Pid      int // as for [Process], or as for [Finished] if the process has ended
	SelfPid  int
	Comm     string
	Hostname string
	Start    uint64 // CLOCK_MONOTONIC of the process's first call, ns
	Calls    uint64 // of any function of NVML
	Alive    bool
}

// NVMLUsers returns the processes that have initialised NVML: all live processes, and the most
// recently ended processes.
func (o *Oracle) NVMLUsers() ([]NVMLUser, error) {
	var users []NVMLUser
	for i := range nvmlUsers {
		at := stateNVMLUsersAt + i*nvmlUserSize
		if o.u32(at+nvmlUserInUseAt) == 0 {
			continue
		}
		user := NVMLUser{
			Pid:      o.i32(at + nvmlUserSeenPidAt),
			SelfPid:  o.i32(at + nvmlUserSelfPidAt),
			Comm:     o.text(at+nvmlUserCommAt, commSize),
			Hostname: o.text(at+nvmlUserHostnameAt, hostnameSize),
			Start:    o.u64(at + nvmlUserStartAt),
			Calls:    o.u64(at + nvmlUserCallsAt),
		}
		if user.Pid == 0 {
			user.Pid = user.SelfPid
		}
		pid, alive, err := o.nvmlUserHolder(at)
		if err != nil {
			return nil, err
		}
		if user.Alive = alive; pid > 0 {
			user.Pid = pid
		}
		users = append(users, user)
	}
	return users, nil
}

// nvmlUserHolder reports whether a user of NVML lives, and returns the user's pid. nvmlUserHolder
// compares more than the identity, because a later process may have the same identity.
func (o *Oracle) nvmlUserHolder(at int) (pid int, alive bool, err error) {
	identity := int(o.u32(at+nvmlUserIdentityAt)) % maxIDs
	record := stateIdentitiesAt + identity*identitySize
	if o.u32(record+identityInUseAt) == 0 ||
		o.u64(record+identityExecIDAt) != o.u64(at+nvmlUserExecIDAt) ||
		o.i32(record+identitySelfPidAt) != o.i32(at+nvmlUserSelfPidAt) {
		return 0, false, nil
	}
	return o.holder(identity)
}

// nvmlCalls counts the calls of the process that the values at these offsets
// identify.
func (o *Oracle) nvmlCalls(execIDAt, namespaceAt, selfPidAt int) uint64 {
	var calls uint64
	for i := range nvmlUsers {
		at := stateNVMLUsersAt + i*nvmlUserSize
		if o.u32(at+nvmlUserInUseAt) != 0 && o.u64(at+nvmlUserExecIDAt) == o.u64(execIDAt) &&
			o.u64(at+nvmlUserPidNSAt) == o.u64(namespaceAt) && o.u32(at+nvmlUserSelfPidAt) == o.u32(selfPidAt) {
			calls += o.u64(at + nvmlUserCallsAt)
		}
	}
	return calls
}
