export class Chain {}
export const openChain = () => new Chain();
